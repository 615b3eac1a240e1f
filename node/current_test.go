package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"yardmaster/scheduler"
)

// What people read of a silence does not speak of the program.
func TestSilence_Words(t *testing.T) {
	late := fmt.Errorf("node n2: %w", context.DeadlineExceeded)
	for got, want := range map[string]string{
		plainly(late):   "nothing came in time",
		inTheDark(late): "the authority did not answer in time",
		inTheDark(fmt.Errorf("look: %w", scheduler.ErrNoTenure)): "it knows of nobody who holds the authority",
		plainly(errors.New("node n2: node does not listen")):     "node n2: node does not listen",
		inTheDark(errors.New("node n2: node does not listen")):   "node n2: node does not listen",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
