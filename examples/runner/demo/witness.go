package demo

import (
	"fmt"
	"os"
	"sync"

	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// witness records executions in a file.
type witness struct {
	mu   sync.Mutex
	file *os.File // nil: not requested
}

func openWitness(path string) (*witness, error) {
	if path == "" {
		return &witness{}, nil
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open witness: %w", err)
	}
	return &witness{file: f}, nil
}

// write appends a line with a single write, so that several runners can share a
// file, and returns when it is on disk.
func (w *witness) write(r *rrq.Request) error {
	if w.file == nil {
		return nil
	}
	line := fmt.Appendf(nil, "%s %s %d %d\n", r.Context.DispatchID, r.JobID, r.Context.Attempt, r.Context.Fence)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.file.Write(line); err != nil {
		return fmt.Errorf("write witness: %w", err)
	}
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("sync witness: %w", err)
	}
	return nil
}

// end records that a handler has ended. The line is not synced: after a crash
// of the host no handler is running.
func (w *witness) end(r *rrq.Request) {
	if w.file == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = fmt.Fprintf(w.file, "end %s\n", r.Context.DispatchID)
}

func (w *witness) close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}
