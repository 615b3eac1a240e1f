package node

import (
	"errors"
	"fmt"
	"testing"

	"yardmaster/cluster"
	"yardmaster/job"
)

// A publish that nobody can tell the end of is to be repeated, and a key that
// belongs to another queue is not.
func TestInWorkersWords(t *testing.T) {
	var away *job.UnavailableError
	if err := inWorkersWords(fmt.Errorf("%w: timeout", cluster.ErrUnknown)); !errors.As(err, &away) {
		t.Errorf("an unknown end is %v", err)
	}
	var invalid *job.InvalidError
	if err := inWorkersWords(&cluster.APIError{Code: "409", Text: "id_conflict"}); !errors.As(err, &invalid) {
		t.Errorf("a conflict is %v", err)
	}
	other := errors.New("disk")
	if err := inWorkersWords(other); err != other || inWorkersWords(nil) != nil {
		t.Errorf("another error is %v", err)
	}
}
