package statedir

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"yardmaster/ledger"
)

// Exec carries out one of the contract's commands in a directory and gives the
// event that answers it, as JSON on one line. With compact, events of
// dispatches that have ended then leave events.json.
//
// The directory must be there; an empty one starts empty. It waits for its turn
// until ctx ends. Errors are the ledger's refusals, [ledger.ErrInvalidJSON],
// [DamagedError], and "io error: …" for what the system refused. After an error
// nothing is changed, unless it says that the command is done.
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

func (d *store) exec(c ledger.Command, compact bool) ([]byte, error) {
	s, err := d.load()
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = new(state)
	}
	answer, fresh, err := s.judge(c, d.now)
	if err != nil {
		return nil, err
	}
	if compact {
		before := s.size()
		if err := s.compact(d.now); err != nil {
			return nil, d.damaged(eventsFile, err, false)
		}
		fresh = fresh || s.size() < before
	}
	if fresh || d.stale {
		if err := d.commit(s); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// Snapshot gives the contract's view of a directory as it is now, and changes
// nothing. Errors are as Exec's; a directory without a state is one.
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
		return ledger.Snapshot{}, noState(dir)
	}
	return s.snapshot(d.now)
}

// Init makes a directory with a state in which nothing has happened yet. One
// that is there already begins anew: the files of this package are replaced,
// all others stay. What is replaced and says anything is kept beside it under
// the name it had with ".old" behind, until the next Init that replaces
// something.
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

func (d *store) init() error {
	s, err := d.load()
	if damaged := new(DamagedError); err != nil && !errors.As(err, &damaged) {
		return err
	}
	if err != nil || s != nil && s.size() > 0 {
		says := []string{truthFile, eventsFile}
		if _, err := os.Stat(d.path(truthFile)); isAbsent(err) { // then only these tell of times and counts
			says = append(says, dispatchFile, snapshotFile)
		}
		if err := d.keep(says...); err != nil {
			return ioError(err)
		}
	}
	d.disk, d.mailbox = make(digests), true
	for _, view := range viewFiles {
		b, err := os.ReadFile(d.path(view.name))
		if err != nil && !isAbsent(err) {
			return ioError(err)
		}
		if err == nil {
			d.disk[view.name] = digest(b)
		}
	}
	if there := d.disk[mailboxFile]; there != "" && there != digest([]byte(noMailbox)) {
		if err := d.keep(mailboxFile); err != nil {
			return ioError(err)
		}
	}
	if err := d.commit(new(state)); err != nil {
		return err
	}
	return ioError(syncDir(filepath.Dir(filepath.Clean(d.dir))))
}

// keep gives files that are about to be replaced a second name.
func (d *store) keep(names ...string) error {
	for _, name := range names {
		old := d.path(name + ".old")
		if _, err := os.Stat(d.path(name)); isAbsent(err) {
			continue
		}
		if err := os.Remove(old); err != nil && !isAbsent(err) {
			return err
		}
		if err := os.Link(d.path(name), old); err != nil {
			return err
		}
	}
	return nil
}

// open locks a directory, shared or exclusively.
func open(ctx context.Context, dir string, how int) (*store, error) {
	info, err := os.Stat(dir)
	switch {
	case isAbsent(err):
		return nil, missing(dir)
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
