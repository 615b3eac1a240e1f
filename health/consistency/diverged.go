package consistency

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DivergedError means that this node's ledger differs from that of the majority, so that
// its data directory must not be used again.
type DivergedError struct{ Text, Advice string }

func (e *DivergedError) Error() string { return e.Text + "; " + e.Advice }

// divergedFile returns the file that marks a data directory whose ledger has diverged.
func divergedFile(dir string) string { return filepath.Join(dir, "diverged") }

// CheckDir returns a [*DivergedError] with advice if a data directory is marked as
// diverged. Without the mark, a replay of its log might produce the right ledger this
// time and hide the fault.
func CheckDir(dir, advice string) error {
	text, err := os.ReadFile(divergedFile(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("check whether the ledger has diverged: %w", err)
	}
	return &DivergedError{strings.TrimSpace(string(text)), advice}
}
