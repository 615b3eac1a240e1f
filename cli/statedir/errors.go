package statedir

import (
	"errors"
	"fmt"
	"io/fs"
)

// DamagedError reports a file with unexpected content. The command has changed
// nothing.
type DamagedError struct {
	File   string // path
	Err    error
	Remedy string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("json error: %s cannot be read: %v; %s", e.File, e.Err, e.Remedy)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// ioError returns an error of the operating system with the prefix that the
// contract requires; nil if err is nil.
func ioError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("io error: %w", err)
}

// missingDirError returns the error for a directory that does not exist.
func missingDirError(dir string) error {
	return fmt.Errorf("io error: %s: %w; create it with 'yardmaster init %s'", dir, errNoDir, dir)
}

var errNoDir = errors.New("no such state directory")

// noStateError returns the error for a directory without a state.
func noStateError(dir string) error {
	return fmt.Errorf("io error: %s: %w; create one with 'yardmaster init %s'", dir, errNoState, dir)
}

var (
	errNoState     = errors.New("holds no state")
	errFileMissing = errors.New("it is missing, but other files of the state exist")
)

// isNotExist reports whether err means that a file does not exist.
func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
