package cluster

import (
	"sync"
	"testing"
)

// TestRequest_SetIndex checks that a reply has the highest index of several commands, in
// whatever order they are answered.
func TestRequest_SetIndex(t *testing.T) {
	var r Request
	var commands sync.WaitGroup
	for index := range uint64(100) {
		commands.Go(func() { r.SetIndex(index) })
	}
	commands.Wait()
	r.SetIndex(7)
	if got := r.Index(); got != 99 {
		t.Errorf("index %d, want 99", got)
	}
}
