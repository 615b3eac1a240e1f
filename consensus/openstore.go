package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/yardmaster-dev/yardmaster/consensus/boltcheck"
	"github.com/yardmaster-dev/yardmaster/consensus/peers"
	"github.com/yardmaster-dev/yardmaster/consensus/wal"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

// DamagedError is returned when the data on a node's disk is not what the node
// wrote. Such a node must not take part: it would vote, and count towards a
// quorum, for entries that it does not have.
type DamagedError struct {
	Node string
	Dir  string // its data directory
	What string // the damaged part
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s of node %s is not what it wrote: %v. This node stops, to protect the other members, which continue. "+
		"Do not put an older copy back: move %s away, start the node with an empty directory, and run "+
		"'yardmaster cluster replace %s' at another member; restore a single node from a backup, with 'yardmaster restore'",
		e.What, e.Node, e.Err, e.Dir, e.Node)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// ReleaseError is returned when the log has an entry that this release does not know. The
// data is intact, but the node cannot apply it: its ledger would differ from those of the
// other members.
type ReleaseError struct {
	Node string
	Err  error
}

func (e *ReleaseError) Error() string {
	return fmt.Sprintf("node %s cannot apply an entry that another release wrote: %v. Its data is intact: start it with the release that the other members run", e.Node, e.Err)
}

func (e *ReleaseError) Unwrap() error { return e.Err }

// What a node has in Raft's directory, beside the snapshots and the watermarks.
const (
	logDir     = "log"       // Raft's log
	stableFile = "stable.db" // its term and vote
)

// Store is what a node has on disk for consensus: Raft's log, its term and vote, the
// snapshots, and the watermarks.
type Store struct {
	dir        string
	log        *wal.Log
	stable     *raftboltdb.BoltStore
	snaps      raft.SnapshotStore
	watermarks *watermarks
	lastIndex  uint64 // last index of the log and its snapshot when it was opened
}

// OpenStore opens Raft's files and verifies all of them before they are used:
// each entry of the log, the newest snapshot, and that they reach as far as this
// node and its peers have recorded. If that fails, the error is a [*DamagedError].
// It must be called before any other part of the node communicates with other
// members. The caller closes the Store unless it passes it to [Open].
func OpenStore(cfg Config, id *Identity, log *slog.Logger) (*Store, error) {
	cfg = cfg.withDefaults()
	s := &Store{dir: filepath.Join(cfg.Dir, "raft")}
	if err := s.open(cfg, id, log); err != nil {
		if damaged, ok := errors.AsType[*DamagedError](err); ok {
			damaged.Node, damaged.Dir = id.Node, cfg.Dir
		}
		return nil, errors.Join(err, s.Close())
	}
	if err := s.checkWithPeers(cfg, id); err != nil {
		return nil, errors.Join(&DamagedError{Node: id.Node, Dir: cfg.Dir, What: "the log", Err: err}, s.Close())
	}
	return s, nil
}

// Close closes the files. It may be called more than once.
func (s *Store) Close() (err error) {
	if s.log != nil {
		err = s.log.Close()
		s.log = nil
	}
	if s.stable != nil {
		err = errors.Join(err, s.stable.Close())
		s.stable = nil
	}
	return err
}

// raw returns the log, and the store of the term and the vote, as one store.
func (s *Store) raw() rawStore {
	return struct {
		raft.LogStore
		raft.StableStore
	}{s.log, s.stable}
}

// open opens and verifies the files, except for the comparison with peers. A
// [*DamagedError] that it returns does not have the node and its directory yet.
func (s *Store) open(cfg Config, id *Identity, log *slog.Logger) (err error) {
	if err := prepareDir(s.dir, id); err != nil {
		return err
	}
	if s.watermarks, err = loadWatermarks(s.dir); err != nil {
		return &DamagedError{What: watermarkFile, Err: err}
	}
	if err := checkRelease(s.dir); err != nil {
		return err
	}
	if err := s.openFiles(cfg.segmentBytes); err != nil {
		return err
	}
	if s.snaps, err = raft.NewFileSnapshotStoreWithLogger(s.dir, retainSnapshots, newRaftLog(log)); err != nil {
		return fmt.Errorf("open snapshots: %w", err)
	}
	last, err := s.verify()
	if err != nil {
		return err
	}
	s.lastIndex = last
	switch {
	case !id.Bootstrapped():
		return nil
	case last == 0:
		return &DamagedError{What: "raft's directory", Err: errors.New("its files are gone, although this node was bootstrapped before")}
	}
	if err := s.watermarks.verify(s.stable, last); err != nil {
		return &DamagedError{What: "an older file of raft was put back: the log", Err: err}
	}
	return nil
}

// checkRelease returns an error if release 0.1.0 wrote the directory: it had the log, the term
// and the vote in one file.
func checkRelease(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, stableFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	old := filepath.Join(dir, "raft.db")
	if _, err := os.Stat(old); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s is of release 0.1.0, whose log this release does not read: take a backup with that release and restore it with this one", old), err)
	}
	return nil
}

// openFiles opens the log and stableFile, or creates both.
func (s *Store) openFiles(segmentBytes int64) (err error) {
	stable, logs := filepath.Join(s.dir, stableFile), filepath.Join(s.dir, logDir)
	switch err := boltcheck.Check(stable); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return &DamagedError{What: stableFile, Err: err}
	default: // it is created after the log
		if _, err := os.Stat(logs); err != nil {
			return &DamagedError{What: "the log", Err: err}
		}
	}
	if s.log, err = wal.Open(logs, segmentBytes); err != nil {
		if _, isCorrupt := errors.AsType[*wal.CorruptError](err); isCorrupt {
			return &DamagedError{What: "the log", Err: err}
		}
		return err
	}
	if s.stable, err = openBolt(stable); err != nil {
		return err
	}
	return s.rewriteStable()
}

// rewriteStable writes the term again, and with it the vote, which is in the same page. A
// process may have ended after the sync of a write had failed: its content can still be read
// then, but only from memory, and the vote would be given again without being on the disk.
func (s *Store) rewriteStable() error {
	term, err := zeroIfMissing(s.stable.GetUint64([]byte(keyTerm)))
	if err != nil || term == 0 {
		return err
	}
	return s.stable.SetUint64([]byte(keyTerm), term)
}

// openBolt opens a file of raft-boltdb.
func openBolt(path string) (*raftboltdb.BoltStore, error) {
	store, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		BoltOptions: &bbolt.Options{
			Timeout: 2 * time.Second, // for the lock of another process
			// bbolt trusts the list of free pages that it writes, and boltcheck does not read it.
			NoFreelistSync: true,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Base(path), err)
	}
	return store, nil
}

// prepareDir creates the directory and that of the snapshots, which Raft would make readable for
// everyone. It removes files of a first start that was not completed, which Raft has never used.
func prepareDir(dir string, id *Identity) error {
	if !id.Bootstrapped() {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clear unfinished raft directory: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "snapshots"), durable.DirMode); err != nil {
		return fmt.Errorf("make raft directory: %w", err)
	}
	return nil
}

// verify checks the newest snapshot and every entry after it, and returns the
// last index that they contain together.
func (s *Store) verify() (last uint64, err error) {
	list, err := s.snaps.List()
	if err != nil {
		return 0, fmt.Errorf("list snapshots: %w", err)
	}
	if len(list) > 0 { // the newest comes first; older ones lack the entries removed since
		meta, body, err := s.snaps.Open(list[0].ID) // verifies its checksum
		if err != nil {
			return 0, &DamagedError{What: "snapshot " + list[0].ID, Err: err}
		}
		if err := body.Close(); err != nil {
			return 0, fmt.Errorf("close snapshot: %w", err)
		}
		last = meta.Index
	}
	first, err := s.log.FirstIndex()
	end, err2 := s.log.LastIndex()
	if err := errors.Join(err, err2); err != nil {
		return 0, &DamagedError{What: "the log", Err: err}
	}
	if end < last { // Raft had no time to empty the log when it was sent the snapshot
		if err := s.log.DeleteRange(first, end); err != nil {
			return 0, fmt.Errorf("remove log entries that a snapshot has replaced: %w", err)
		}
		first, end = 0, 0
	}
	if first > last+1 {
		return 0, &DamagedError{What: "the snapshot before the log", Err: fmt.Errorf("the log begins with entry %d, but the newest snapshot is of entry %d", first, last)}
	}
	if err := s.verifyEntries(first, end); err != nil {
		return 0, &DamagedError{What: "the log", Err: err}
	}
	return max(last, end), nil
}

// verifyEntries checks the entries first to end of the log.
func (s *Store) verifyEntries(first, end uint64) error {
	term := uint64(0)
	for i := first; i <= end && end > 0; i++ {
		var entry raft.Log
		if err := s.log.GetLog(i, &entry); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if entry.Index != i || entry.Term < term {
			return fmt.Errorf("entry %d has index %d and term %d, after an entry of term %d", i, entry.Index, entry.Term, term)
		}
		if err := checkLog(&entry); err != nil {
			return err
		}
		term = entry.Term
	}
	return nil
}

// checkWithPeers asks the members that can be reached whether they have seen
// more of this node's log than there is: the whole directory may be an older
// copy.
func (s *Store) checkWithPeers(cfg Config, id *Identity) error {
	if id.Listener() == nil {
		return nil
	}
	s.setLogInfo(cfg, id, func() uint64 { return s.lastIndex })
	return id.Listener().CheckTruncated()
}

// setLogInfo gives the peer listener access to the log's last index, and to
// what the watermarks have recorded of other members' logs.
func (s *Store) setLogInfo(cfg Config, id *Identity, last func() uint64) {
	id.Listener().SetLogInfo(peers.LogInfo{LastIndex: last, Fresh: !id.Bootstrapped(), MinIndex: s.watermarks.peerIndex, OnTruncated: func(err error) {
		cfg.OnFatal(&DamagedError{Node: id.Node, Dir: cfg.Dir, What: "the log", Err: err})
	}})
}
