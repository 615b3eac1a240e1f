package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"

	"golang.org/x/sys/unix"
)

const lockFile = "engine.lock"

// lockPause is the interval between attempts to take a held lock. Commands hold
// it for milliseconds.
const lockPause = 2 * time.Millisecond

// Exec executes one command of the contract in a directory and returns the event
// that answers it, as one line of JSON. With compact, it then drops the events of
// ended dispatches from events.json.
//
// A directory that does not exist is created; an empty one has an empty state. Exec
// blocks until it holds the directory's lock or ctx is done. Its errors are the ledger's refusals,
// [ledger.ErrInvalidJSON], "json error: …" for a file with unexpected content, and
// "io error: …" for errors of the operating system. After an error nothing has
// changed, unless the error states that the command was executed.
func Exec(ctx context.Context, dir string, command []byte, compact bool) ([]byte, error) {
	apply, err := parse(command)
	if err != nil {
		return nil, err
	}
	if err := createDir(dir); err != nil {
		return nil, ioError(err)
	}
	d, err := open(ctx, dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer d.close()
	return d.exec(apply, compact)
}

// applyFunc executes one command in a state. It returns the event that answers it, as
// JSON, and whether the state has changed.
type applyFunc func(s *state, now time.Time) (answer []byte, changed bool, err error)

// parse returns the function that executes a command of the contract.
func parse(command []byte) (applyFunc, error) {
	m, err := ledger.ParseMailboxCommand(command)
	if err != nil {
		return nil, err
	}
	if m != nil {
		return func(s *state, now time.Time) ([]byte, bool, error) { return s.applyMailbox(m, now) }, nil
	}
	c, err := ledger.ParseCommand(command)
	if err != nil {
		return nil, err
	}
	return func(s *state, now time.Time) ([]byte, bool, error) { return s.apply(c, now) }, nil
}

// createDir creates a directory and its parents if it does not exist, and syncs its
// entry to disk.
func createDir(dir string) error {
	if _, err := os.Stat(dir); !isNotExist(err) {
		return nil // open reports other errors
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(filepath.Dir(filepath.Clean(dir)))
}

// exec executes one command as [Exec] describes. The store holds the exclusive lock.
func (d *store) exec(apply applyFunc, compact bool) ([]byte, error) {
	s, err := d.load()
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = new(state)
	}
	answer, changed, err := apply(s, d.now)
	if err != nil {
		return nil, err
	}
	if compact {
		sizeBefore := s.size()
		if err := s.compact(d.now); err != nil {
			return nil, d.damaged(eventsFile, err, false)
		}
		changed = changed || s.size() < sizeBefore
	}
	if !changed && !d.viewsStale {
		return answer, nil
	}
	if err := d.commit(s); err != nil {
		return nil, err
	}
	return answer, nil
}

// Snapshot returns the snapshot of the contract for a directory, as of now. It
// changes nothing. It returns the same errors as [Exec], and an error for a
// directory without a state.
func Snapshot(ctx context.Context, dir string) (ledger.Snapshot, error) {
	d, err := open(ctx, dir, unix.LOCK_SH)
	if err != nil {
		return ledger.Snapshot{}, err
	}
	defer d.close()
	s, err := d.load()
	if err != nil {
		return ledger.Snapshot{}, err
	}
	if s == nil {
		return ledger.Snapshot{}, fmt.Errorf("io error: %s: %w; create one with 'yardmaster init %s'", dir, errNoState, dir)
	}
	return s.snapshot(d.now)
}

// Init creates a directory with an empty state. In an existing directory it
// replaces the files of this package and leaves all others. Files that hold
// information are kept under their name with ".old" appended, until the next Init
// that replaces them.
func Init(ctx context.Context, dir string) error {
	if err := createDir(dir); err != nil {
		return ioError(err)
	}
	d, err := open(ctx, dir, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer d.close()
	return d.init()
}

// init replaces the files by those of an empty state as [Init] describes, even if one of
// them is damaged. The store holds the exclusive lock.
func (d *store) init() error {
	s, err := d.load()
	if _, isDamaged := errors.AsType[*damagedError](err); err != nil && !isDamaged {
		return err
	}
	if err != nil || s != nil && s.size() > 0 {
		names := []string{stateFile, eventsFile}
		if _, err := os.Stat(d.path(stateFile)); isNotExist(err) { // then only these hold the times, counts and bodies
			names = append(names, dispatchFile, snapshotFile, mailboxFile)
		}
		if err := d.backUp(names...); err != nil {
			return ioError(err)
		}
	}

	if _, err := d.readViews(); err != nil { // load stops at a damaged file
		return err
	}
	if err := d.commit(new(state)); err != nil {
		return err
	}
	return ioError(syncDir(filepath.Dir(filepath.Clean(d.dir))))
}

// backUp links each existing file to its name with ".old" appended. It replaces a
// file that has that name.
func (d *store) backUp(names ...string) error {
	for _, name := range names {
		if _, err := os.Stat(d.path(name)); isNotExist(err) {
			continue
		}
		old := d.path(name + ".old")
		if err := os.Remove(old); err != nil && !isNotExist(err) {
			return err
		}
		if err := os.Link(d.path(name), old); err != nil {
			return err
		}
	}
	return nil
}

// open returns a store for a directory. It blocks until it holds the directory's
// lock, in the mode [unix.LOCK_SH] (shared) or [unix.LOCK_EX] (exclusive), or until
// ctx is done. The caller closes the store, which releases the lock.
func open(ctx context.Context, dir string, mode int) (*store, error) {
	info, err := os.Stat(dir)
	switch {
	case isNotExist(err):
		return nil, fmt.Errorf("io error: %s: %w; create it with 'yardmaster init %s'", dir, errNoDir, dir)
	case err != nil:
		return nil, ioError(err)
	case !info.IsDir():
		return nil, ioError(&fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR})
	}
	f, err := lock(ctx, filepath.Join(dir, lockFile), mode)
	if err != nil {
		return nil, err
	}
	return &store{dir: dir, lock: f, now: time.Now()}, nil
}

// lock creates the lock file at path if it does not exist, and blocks until it holds
// the lock in a mode, as in open, or ctx is done. Closing the returned file releases
// the lock, as the end of the process does. The original program locks the same file
// in the same way.
func lock(ctx context.Context, path string, mode int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if mode == unix.LOCK_SH && (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) {
		f, err = os.Open(path) // a shared lock needs no write permission
	}
	if err != nil {
		return nil, ioError(err)
	}
	for {
		err := unix.Flock(int(f.Fd()), mode|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, ioError(&fs.PathError{Op: "lock", Path: path, Err: err})
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("io error: %s is locked by another process; wait for it to end, or end it", path)
		case <-time.After(lockPause):
		}
	}
}

// damagedError reports a file with unexpected content. The command has changed
// nothing.
type damagedError struct {
	File   string // path
	Err    error
	Remedy string
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("json error: %s cannot be read: %v; %s", e.File, e.Err, e.Remedy)
}

func (e *damagedError) Unwrap() error { return e.Err }

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
