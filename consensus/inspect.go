package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"yardmaster/consensus/boltcheck"
	"yardmaster/consensus/roster"
)

// DamagedError says that what a node has on its disk is not what it once
// wrote. Such a node must not take part: it would vote, and count towards a
// quorum, for what it does not have.
type DamagedError struct {
	Node string
	Dir  string // its data directory
	What string // what was looked at
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s of node %s is not what it wrote: %v. This node stops, so that it can spoil nothing; the other members go on. "+
		"Put no older copy back: move %s away, start the node with an empty directory, and give it its place again with "+
		"yardmaster cluster replace %s, asked of another member; a node alone is made anew with yardmaster restore",
		e.What, e.Node, e.Err, e.Dir, e.Node)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// Store is what agreement keeps on a node's disk: raft's log with its term and
// vote, snapshots, and the marks beside them.
type Store struct {
	dir   string
	bolt  *raftboltdb.BoltStore
	snaps raft.SnapshotStore
	marks *marks
	last  uint64 // how far the log reached when it was opened, with the snapshot before it
}

// OpenStore opens raft's files and reads all of them before anything is done
// with them: the log's pages, each entry, the newest snapshot, and whether they
// are as far as this node and its peers have seen them. What fails gives a
// [*DamagedError]. It is to be called before anything else of the node speaks
// with other members. The caller closes the Store if no Node does.
func OpenStore(cfg Config, id *Identity, log *slog.Logger) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Store{dir: filepath.Join(cfg.Dir, "raft")}
	if err := s.open(id, log); err != nil {
		err = errors.Join(err, s.Close())
		var d *damage
		if errors.As(err, &d) {
			err = &DamagedError{Node: id.Node, Dir: cfg.Dir, What: d.what, Err: d.err}
		}
		return nil, err
	}
	if err := s.askPeers(cfg, id); err != nil {
		return nil, errors.Join(&DamagedError{Node: id.Node, Dir: cfg.Dir, What: "the log", Err: err}, s.Close())
	}
	return s, nil
}

// damage is what [DamagedError] tells, without the node.
type damage struct {
	what string
	err  error
}

func (d *damage) Error() string { return d.what + ": " + d.err.Error() }

// Close closes the log's file. It is safe to call again.
func (s *Store) Close() error {
	if s.bolt == nil {
		return nil
	}
	err := s.bolt.Close()
	s.bolt = nil
	return err
}

func (s *Store) open(id *Identity, log *slog.Logger) (err error) {
	if err := prepare(s.dir, id); err != nil {
		return err
	}
	if s.marks, err = loadMarks(s.dir); err != nil {
		return &damage{markFile, err}
	}
	if err := boltcheck.File(filepath.Join(s.dir, logFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &damage{logFile, err}
	}
	if s.bolt, err = openDisk(s.dir); err != nil {
		return err
	}
	if s.snaps, err = raft.NewFileSnapshotStoreWithLogger(s.dir, keepSnapshots, &raftLog{log: log}); err != nil {
		return fmt.Errorf("open snapshots: %w", err)
	}
	last, err := s.read()
	if err != nil {
		return err
	}
	s.last = last
	switch {
	case !id.Bootstrapped():
		return nil
	case last == 0:
		return &damage{"raft's directory", errors.New("its files are gone although this node has voted before")}
	}
	if err := s.marks.kept(s.bolt, last); err != nil {
		return &damage{"an older " + logFile + " was put back: the log", err}
	}
	return nil
}

// prepare makes the directory. What lies there from a first start that did not
// come to its end was never used by raft and is begun again.
func prepare(dir string, id *Identity) error {
	if !id.Bootstrapped() {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clear unfinished raft directory: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make raft directory: %w", err)
	}
	return nil
}

// read reads the newest snapshot and every entry after it, and tells how far
// they reach together.
func (s *Store) read() (last uint64, err error) {
	list, err := s.snaps.List()
	if err != nil {
		return 0, fmt.Errorf("list snapshots: %w", err)
	}
	if len(list) > 0 { // the newest is first; an older one lacks entries that are gone
		meta, body, err := s.snaps.Open(list[0].ID) // reads it against its checksum
		if err != nil {
			return 0, &damage{"snapshot " + list[0].ID, err}
		}
		if err := body.Close(); err != nil {
			return 0, fmt.Errorf("close snapshot: %w", err)
		}
		last = meta.Index
	}
	first, err := s.bolt.FirstIndex()
	end, err2 := s.bolt.LastIndex()
	if err := errors.Join(err, err2); err != nil {
		return 0, &damage{logFile, err}
	}
	if first > last+1 {
		return 0, &damage{"the snapshot before the log", fmt.Errorf("the log begins with entry %d, and the newest snapshot is of entry %d", first, last)}
	}
	if err := s.entries(first, end); err != nil {
		return 0, &damage{logFile, err}
	}
	return max(last, end), nil
}

func (s *Store) entries(first, end uint64) error {
	term := uint64(0)
	for i := first; i <= end && end > 0; i++ {
		var entry raft.Log
		if err := s.bolt.GetLog(i, &entry); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if entry.Index != i || entry.Term < term {
			return fmt.Errorf("entry %d says that it is entry %d of term %d, after one of term %d", i, entry.Index, entry.Term, term)
		}
		if err := checkLog(&entry); err != nil {
			return err
		}
		term = entry.Term
	}
	return nil
}

// askPeers asks the members that can be reached whether they have seen more of
// this node's log than there is: the whole directory may be an older copy.
func (s *Store) askPeers(cfg Config, id *Identity) error {
	if id.Door() == nil {
		return nil
	}
	s.tell(cfg, id, func() uint64 { return s.last })
	return id.Door().AskBehind()
}

// tell has the door tell how far the log reaches, and hold the others to what
// they have had.
func (s *Store) tell(cfg Config, id *Identity, last func() uint64) {
	id.Door().Keep(roster.Log{Last: last, Fresh: !id.Bootstrapped(), Floor: s.marks.floor, Behind: func(err error) {
		cfg.Stuck(&DamagedError{Node: id.Node, Dir: cfg.Dir, What: "the log", Err: err})
	}})
}
