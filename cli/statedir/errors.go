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

// Errors that the error of a command names.
var (
	errNoDir       = errors.New("no such state directory")
	errNoState     = errors.New("holds no state")
	errFileMissing = errors.New("it is missing, but other files of the state exist")
	// errChangedOutside is reported for events.json only: for the original program
	// it is the authoritative file, so its content must not be overwritten.
	errChangedOutside = errors.New("another program has changed it since the last command")
	errNewerFormat    = errors.New("it was written by a newer release")
	errCrashed        = errors.New("killed") // at a step at which a test stops
)

// isNotExist reports whether err means that a file does not exist.
func isNotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
