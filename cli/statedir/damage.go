package statedir

import (
	"errors"
	"fmt"
	"io/fs"
)

// DamagedError refuses to go on over a file that cannot be read as what it
// should be. Nothing was changed.
type DamagedError struct {
	File string // with its path
	Why  error
	Do   string // what to do about it
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("json error: %s cannot be read: %v; %s", e.File, e.Why, e.Do)
}

func (e *DamagedError) Unwrap() error { return e.Why }

// ioError marks what the operating system refused, as the contract's callers
// know it.
func ioError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("io error: %w", err)
}

// missing says that there is nothing to work in.
func missing(dir string) error {
	return fmt.Errorf("io error: %s: %w; 'yardmaster init %s' makes it", dir, errNoDir, dir)
}

var errNoDir = errors.New("no such state directory")

// noState says that a directory is there with nothing of ours in it.
func noState(dir string) error {
	return fmt.Errorf("io error: %s: %w; 'yardmaster init %s' makes one there", dir, errNoState, dir)
}

var (
	errNoState = errors.New("holds no state")
	errLost    = errors.New("it is not there, though other files of the state are")
)

// isAbsent tells that a file is simply not there.
func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
