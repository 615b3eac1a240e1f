package node

import (
	"errors"
	"fmt"
	"testing"

	"yardmaster/cluster"
	"yardmaster/job"
)

// What cannot be read for want of a leader is to be asked for again.
func TestUnread(t *testing.T) {
	for _, c := range []struct {
		cause error
		again bool
	}{
		{fmt.Errorf("YARD_RESULTS: %w", cluster.ErrNoLeader), true},
		{errors.New("bytes that make no sense"), false},
	} {
		err := unread("result", job.ID{1}, c.cause)
		var away *job.UnavailableError
		if errors.As(err, &away) != c.again || !c.again && !errors.Is(err, c.cause) {
			t.Errorf("%v: %v", c.cause, err)
		}
	}
}
