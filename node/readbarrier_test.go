package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// Texts about missing answers are in plain words.
func TestErrorTexts(t *testing.T) {
	late := fmt.Errorf("node n2: %w", context.DeadlineExceeded)
	for got, want := range map[string]string{
		errorText(late):        "no answer in time",
		barrierErrorText(late): "the authority did not answer in time",
		barrierErrorText(fmt.Errorf("status: %w", scheduler.ErrNotAuthority)): "no authority is known",
		errorText(errors.New("node n2: node does not listen")):                "node n2: node does not listen",
		barrierErrorText(errors.New("node n2: node does not listen")):         "node n2: node does not listen",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
