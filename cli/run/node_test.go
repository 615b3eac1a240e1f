package run

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cli/usererror"
)

// The error of a node has exactly one remedy: its own or a general one.
func TestNodeError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("port is taken; choose another"), "port is taken; choose another"},
		{fmt.Errorf("listen: %w", syscall.EADDRINUSE), "listen: address already in use; another program listens there: stop it or choose another address"},
		{errors.New("disk is full"), "disk is full; correct that and start the node again"},
	} {
		got := ""
		if err := nodeProblem(tt.err); err != nil {
			got = usererror.Explain(err, "", 0).Error()
		}
		if got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}
