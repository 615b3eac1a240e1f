package authority

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Texts about missing answers are in plain words.
func TestErrorTexts(t *testing.T) {
	late := fmt.Errorf("node n2: %w", context.DeadlineExceeded)
	for got, want := range map[string]string{
		cluster.ErrorText(late): "no answer in time",
		barrierText(late):       "the authority did not answer in time",
		barrierText(fmt.Errorf("status: %w", scheduler.ErrNotAuthority)): "no authority is known",
		cluster.ErrorText(errors.New("node n2: node does not listen")):   "node n2: node does not listen",
		barrierText(errors.New("node n2: node does not listen")):         "node n2: node does not listen",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
