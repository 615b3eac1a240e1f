package worker

import (
	"fmt"
	"os"
	"sync"
)

// Witness is a file that records what was run, independently of the yard.
// Drills compare the two.
type Witness struct {
	file *os.File

	mu      sync.Mutex
	written uint64 // lines

	syncing sync.Mutex
	synced  uint64 // lines on disk
}

// OpenWitness opens a file for appending.
func OpenWitness(path string) (*Witness, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open witness file: %w", err)
	}
	return &Witness{file: file}, nil
}

// Append writes a line and returns when it is on disk. Concurrent calls share
// one fsync, so that the witness does not limit the worker's throughput.
func (w *Witness) Append(line string) error {
	w.mu.Lock()
	_, err := w.file.WriteString(line + "\n")
	w.written++
	lineNumber := w.written
	w.mu.Unlock()
	if err != nil {
		return fmt.Errorf("write witness: %w", err)
	}
	w.syncing.Lock()
	defer w.syncing.Unlock()
	if w.synced >= lineNumber {
		return nil
	}
	w.mu.Lock()
	upTo := w.written
	w.mu.Unlock()
	if err := w.file.Sync(); err != nil {
		return fmt.Errorf("write witness to disk: %w", err)
	}
	w.synced = upTo
	return nil
}

// Close closes the file.
func (w *Witness) Close() error { return w.file.Close() }
