package consensus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// errWriteDeadline is what a write to the log that took too long gives.
var errWriteDeadline = errors.New("write to the log missed its deadline")

// logFile holds raft's log, term and vote.
const logFile = "raft.db"

// disk is what the guard stands before: raft-boltdb, or a test's.
type disk interface {
	raft.LogStore
	raft.StableStore
}

// openDisk opens the log's file. Its free list is kept in memory only: written
// with each commit, it would cost more than the entries.
func openDisk(dir string) (*raftboltdb.BoltStore, error) {
	store, err := raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(dir, logFile),
		BoltOptions: &bbolt.Options{
			Timeout:         2 * time.Second, // for another process's lock
			NoFreelistSync:  true,
			FreelistType:    bbolt.FreelistMapType,
			InitialMmapSize: 64 << 20,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open log store: %w", err)
	}
	return store, nil
}

// guard gives every write to a disk a deadline and checks every entry that
// passes, in either direction.
//
// A write that hangs would freeze a leader that goes on sending heartbeats:
// nobody would take over. With a deadline the append fails and raft steps
// down. The append itself may come to its end later; it is then taken back
// before anything else is written, because raft goes on as if it had never
// been, and stale entries behind newer ones would make this log look older
// than it is. A second write that misses its deadline, or one that cannot be
// taken back, calls stuck, which ends the process.
type guard struct {
	disk
	marks    *marks // what was promised, written a second time; nil: nobody does
	deadline time.Duration
	stuck    func(error)
	turn     chan struct{}         // holds a token while a write runs, also a late one
	failed   atomic.Pointer[error] // of the last write; nil: it succeeded
}

func newGuard(d disk, m *marks, deadline time.Duration, stuck func(error)) *guard {
	return &guard{disk: d, marks: m, deadline: deadline, stuck: stuck, turn: make(chan struct{}, 1)}
}

// GetLog reads an entry and checks it, so that a damaged one is neither
// applied nor sent to others.
func (g *guard) GetLog(index uint64, out *raft.Log) error {
	if err := g.disk.GetLog(index, out); err != nil {
		return err
	}
	return checkLog(out)
}

func (g *guard) StoreLog(entry *raft.Log) error { return g.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries, all or none. The leader's are sealed here, a
// follower's have come with their seals.
func (g *guard) StoreLogs(entries []*raft.Log) error {
	for _, e := range entries {
		if len(e.Extensions) == 0 {
			e.Extensions = seal(e)
		}
		if err := checkLog(e); err != nil {
			return err
		}
	}
	first, last := entries[0].Index, entries[len(entries)-1].Index
	return g.write("append",
		func() error { return g.disk.StoreLogs(entries) },
		func() error { return g.disk.DeleteRange(first, last) })
}

// DeleteRange removes entries, at either end of the log.
func (g *guard) DeleteRange(min, max uint64) error {
	return g.write("truncate", func() error { return g.disk.DeleteRange(min, max) }, nil)
}

// Set and SetUint64 keep raft's term and vote.
func (g *guard) Set(key, val []byte) error {
	return g.vital("vote", func() error {
		if err := g.disk.Set(key, val); err != nil || string(key) != keyVote || g.marks == nil {
			return err
		}
		term, err := g.disk.GetUint64([]byte(keyVoteTerm))
		if err != nil {
			return err
		}
		g.marks.note(func(p *promises) { p.VoteTerm, p.Vote = term, string(val) })
		return g.marks.save()
	})
}

func (g *guard) SetUint64(key []byte, val uint64) error {
	return g.vital("term", func() error {
		if err := g.disk.SetUint64(key, val); err != nil || string(key) != keyTerm || g.marks == nil {
			return err
		}
		g.marks.note(func(p *promises) { p.Term = val })
		return g.marks.save()
	})
}

// vital writes what raft cannot go on without: it would end the process by a
// panic, so that the reason has to be said before.
func (g *guard) vital(what string, do func() error) error {
	err := g.write(what, do, nil)
	if err != nil && !errors.Is(err, errWriteDeadline) { // of that attempt has told
		g.stuck(fmt.Errorf("write the %s: %w", what, err))
	}
	return err
}

// How a write stands; whoever moves it from running decides.
const (
	running int32 = iota
	finished
	late
)

// write does one write, or gives up on it, and notes how it went.
func (g *guard) write(what string, do, undo func() error) error {
	err := g.attempt(what, do, undo)
	if err == nil {
		g.failed.Store(nil)
	} else {
		g.failed.Store(&err)
	}
	return err
}

// attempt does one write within the deadline. undo takes it back if it succeeds
// after all; nil if that cannot be done.
func (g *guard) attempt(what string, do, undo func() error) error {
	timer := time.NewTimer(g.deadline)
	defer timer.Stop()
	select {
	case g.turn <- struct{}{}:
	case <-timer.C:
		err := fmt.Errorf("%s: %w while an earlier write still hangs", what, errWriteDeadline)
		g.stuck(err)
		return err
	}
	var state atomic.Int32
	done := make(chan error, 1)
	// The one goroutine nobody may wait for: it can hang in the kernel. It
	// keeps the turn until it is through.
	go func() {
		err := do()
		if !state.CompareAndSwap(running, finished) && err == nil && undo != nil {
			if err := undo(); err != nil {
				g.stuck(fmt.Errorf("take back a late %s: %w", what, err))
			}
		}
		<-g.turn
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	}
	if !state.CompareAndSwap(running, late) {
		return <-done // it came through just now
	}
	err := fmt.Errorf("%s: %w of %v", what, errWriteDeadline, g.deadline)
	if undo == nil {
		g.stuck(err)
	}
	return err
}

// sealSize is the length of a seal.
const sealSize = 4

// seal is a checksum (CRC-32C) of all that makes an entry: where it stands and
// what it says, also of raft's own entries. It travels with the entry.
func seal(entry *raft.Log) []byte {
	var head [17]byte
	binary.BigEndian.PutUint64(head[:], entry.Index)
	binary.BigEndian.PutUint64(head[8:], entry.Term)
	head[16] = byte(entry.Type)
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, entry.Data)
	return binary.BigEndian.AppendUint32(make([]byte, 0, sealSize), sum)
}

// checkLog checks an entry's seal, and those that are ours also by what they
// say of themselves. Logs of earlier releases have no seals.
func checkLog(entry *raft.Log) error {
	if len(entry.Extensions) > 0 && !bytes.Equal(entry.Extensions, seal(entry)) {
		return fmt.Errorf("entry %d of term %d: %w: it does not match its seal", entry.Index, entry.Term, errEntry)
	}
	if entry.Type != raft.LogCommand {
		return nil
	}
	if err := checkEntry(entry.Data); err != nil {
		return fmt.Errorf("entry %d of term %d: %w", entry.Index, entry.Term, err)
	}
	return nil
}
