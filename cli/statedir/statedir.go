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

// Exec executes one command of the contract in a directory and returns the event
// that answers it, as one line of JSON. With compact, it then drops the events of
// ended dispatches from events.json.
//
// The directory must exist; an empty one has an empty state. Exec blocks until it
// holds the directory's lock or ctx is done. Its errors are the ledger's refusals,
// [ledger.ErrInvalidJSON], [DamagedError], and "io error: …" for errors of the
// operating system. After an error nothing has changed, unless the error states
// that the command was executed.
func Exec(ctx context.Context, dir string, command []byte, compact bool) ([]byte, error) {
	c, err := ledger.ParseCommand(command)
	if err != nil {
		return nil, err
	}
	d, err := open(ctx, dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer d.close()
	return d.exec(c, compact)
}

// exec executes a command. The caller holds the exclusive lock.
func (d *store) exec(c ledger.Command, compact bool) ([]byte, error) {
	s, err := d.load()
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = new(state)
	}
	answer, changed, err := s.decide(c, d.now)
	if err != nil {
		return nil, err
	}
	if compact {
		before := s.size()
		if err := s.compact(d.now); err != nil {
			return nil, d.damaged(eventsFile, err, false)
		}
		changed = changed || s.size() < before
	}
	if changed || d.viewsStale {
		if err := d.commit(s); err != nil {
			return nil, err
		}
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
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return ioError(err)
	}
	d, err := open(ctx, dir, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer d.close()
	return d.init()
}

// init resets the directory. The caller holds the exclusive lock.
func (d *store) init() error {
	s, err := d.load()
	if damaged := new(DamagedError); err != nil && !errors.As(err, &damaged) {
		return err
	}
	if err != nil || s != nil && s.size() > 0 {
		names := []string{stateFile, eventsFile}
		if _, err := os.Stat(d.path(stateFile)); isNotExist(err) { // then only these hold the times and counts
			names = append(names, dispatchFile, snapshotFile)
		}
		if err := d.backUp(names...); err != nil {
			return ioError(err)
		}
	}
	d.onDisk, d.rewriteMailbox = make(digests), true
	for _, view := range viewFiles {
		b, err := os.ReadFile(d.path(view.name))
		if err != nil && !isNotExist(err) {
			return ioError(err)
		}
		if err == nil {
			d.onDisk[view.name] = digest(b)
		}
	}
	if sum := d.onDisk[mailboxFile]; sum != "" && sum != digest([]byte(emptyMailbox)) {
		if err := d.backUp(mailboxFile); err != nil {
			return ioError(err)
		}
	}
	if err := d.commit(new(state)); err != nil {
		return err
	}
	return ioError(syncDir(filepath.Dir(filepath.Clean(d.dir))))
}

// backUp links each existing file to its name with ".old" appended.
func (d *store) backUp(names ...string) error {
	for _, name := range names {
		old := d.path(name + ".old")
		if _, err := os.Stat(d.path(name)); isNotExist(err) {
			continue
		}
		if err := os.Remove(old); err != nil && !isNotExist(err) {
			return err
		}
		if err := os.Link(d.path(name), old); err != nil {
			return err
		}
	}
	return nil
}

// open returns the store of a directory with its lock held, shared or exclusive.
// The caller closes the store.
func open(ctx context.Context, dir string, how int) (*store, error) {
	info, err := os.Stat(dir)
	switch {
	case isNotExist(err):
		return nil, fmt.Errorf("io error: %s: %w; create it with 'yardmaster init %s'", dir, errNoDir, dir)
	case err != nil:
		return nil, ioError(err)
	case !info.IsDir():
		return nil, ioError(&fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR})
	}
	f, err := lock(ctx, dir, how)
	if err != nil {
		return nil, err
	}
	return &store{dir: dir, lock: f, now: time.Now()}, nil
}
