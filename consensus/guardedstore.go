package consensus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// errWriteDeadline is returned for a write to the log that took too long.
var errWriteDeadline = errors.New("write to the log missed its deadline")

// rawStore is the store that guardedStore wraps: the files of a [Store], or one of a test.
type rawStore interface {
	raft.LogStore
	raft.StableStore
}

// guardedStore gives every write to the disk a deadline, and checks every entry
// that is written or read.
//
// A write that hangs would block a leader that still sends heartbeats, so no
// other member would take over. With the deadline the append fails and Raft
// steps down. The append may still complete later. It is then undone before
// anything else is written, because Raft has continued as if it had failed, and
// stale entries after newer ones would make this log look older than it is. A
// second write that misses its deadline, or one that cannot be undone, calls
// onFatal, which ends the process.
type guardedStore struct {
	rawStore
	watermarks *watermarks // second copy of term and vote; nil in some tests
	deadline   time.Duration
	onFatal    func(error)
	writing    chan struct{}         // holds a token while a write runs, including a late one
	lastErr    atomic.Pointer[error] // of the last write; nil: it succeeded
}

func newGuardedStore(s rawStore, w *watermarks, deadline time.Duration, onFatal func(error)) *guardedStore {
	return &guardedStore{rawStore: s, watermarks: w, deadline: deadline, onFatal: onFatal, writing: make(chan struct{}, 1)}
}

// IsMonotonic returns true, so that Raft empties the log when it has installed a snapshot
// from the leader. The log has no entry after a gap.
func (g *guardedStore) IsMonotonic() bool { return true }

// GetLog reads an entry and checks it, so that a damaged entry is neither
// applied nor sent.
func (g *guardedStore) GetLog(index uint64, out *raft.Log) error {
	if err := g.rawStore.GetLog(index, out); err != nil {
		return err
	}
	return checkLog(out)
}

func (g *guardedStore) StoreLog(entry *raft.Log) error { return g.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries, all or none. It adds the checksums of entries that
// this node created as leader; those from another leader already have them.
func (g *guardedStore) StoreLogs(entries []*raft.Log) error {
	for _, e := range entries {
		if len(e.Extensions) == 0 {
			e.Extensions = entryChecksum(e)
		}
		if err := checkLog(e); err != nil {
			return err
		}
	}
	first, last := entries[0].Index, entries[len(entries)-1].Index
	return g.write("append",
		func() error { return g.rawStore.StoreLogs(entries) },
		func() error { return g.rawStore.DeleteRange(first, last) })
}

// DeleteRange removes the entries min to max at either end of the log.
func (g *guardedStore) DeleteRange(min, max uint64) error {
	return g.write("truncate", func() error { return g.rawStore.DeleteRange(min, max) }, nil)
}

// Set stores a value of Raft. If it is the vote, Set also saves it in the watermarks,
// with the term of the vote, which Raft has stored before.
func (g *guardedStore) Set(key, val []byte) error {
	return g.writeStable("vote", func() error {
		err := g.rawStore.Set(key, val)
		if isVote := string(key) == keyVote; err != nil || !isVote || g.watermarks == nil {
			return err
		}
		term, err := g.rawStore.GetUint64([]byte(keyVoteTerm))
		if err != nil {
			return err
		}
		g.watermarks.update(func(s *hardState) { s.VoteTerm, s.Vote = term, string(val) })
		return g.watermarks.save()
	})
}

// SetUint64 stores a value of Raft; the term is also saved in the watermarks.
func (g *guardedStore) SetUint64(key []byte, val uint64) error {
	return g.writeStable("term", func() error {
		if err := g.rawStore.SetUint64(key, val); err != nil || string(key) != keyTerm || g.watermarks == nil {
			return err
		}
		g.watermarks.update(func(s *hardState) { s.Term = val })
		return g.watermarks.save()
	})
}

// writeStable calls do, which writes a term or vote. Raft panics if that fails, so onFatal is
// called first, to report the reason.
func (g *guardedStore) writeStable(what string, do func() error) error {
	err := g.write(what, do, nil)
	if err != nil && !errors.Is(err, errWriteDeadline) { // for a missed deadline, write has called onFatal
		g.onFatal(fmt.Errorf("write the %s: %w", what, err))
	}
	return err
}

// States of a write. The side that moves it out of writeRunning decides its
// result.
const (
	writeRunning int32 = iota
	writeDone
	writeLate
)

// write is writeWithDeadline, and records its result in lastErr.
func (g *guardedStore) write(what string, do, undo func() error) error {
	err := g.writeWithDeadline(what, do, undo)
	if err == nil {
		g.lastErr.Store(nil)
	} else {
		g.lastErr.Store(&err)
	}
	return err
}

// writeWithDeadline calls do and returns its error, or errWriteDeadline if do takes
// longer than the deadline. If do succeeds after that, undo is called to revert it.
// undo is nil for a write that cannot be reverted: then a missed deadline is fatal.
// what names the write in errors.
func (g *guardedStore) writeWithDeadline(what string, do, undo func() error) error {
	timer := time.NewTimer(g.deadline)
	defer timer.Stop()
	select {
	case g.writing <- struct{}{}:
	case <-timer.C:
		err := fmt.Errorf("%s: %w while an earlier write still hangs", what, errWriteDeadline)
		g.onFatal(err)
		return err
	}
	var state atomic.Int32
	done := make(chan error, 1)
	// This goroutine is not waited for, because it can hang in the kernel. It
	// keeps the token until do and undo have returned.
	go func() {
		err := do()
		if !state.CompareAndSwap(writeRunning, writeDone) && err == nil && undo != nil {
			if err := undo(); err != nil {
				g.onFatal(fmt.Errorf("undo a late %s: %w", what, err))
			}
		}
		<-g.writing
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	}
	if !state.CompareAndSwap(writeRunning, writeLate) {
		return <-done // it completed just now
	}
	err := fmt.Errorf("%s: %w of %v", what, errWriteDeadline, duration.Format(g.deadline))
	if undo == nil {
		g.onFatal(err)
	}
	return err
}

// checksumSize is the length of an entry's checksum, in bytes.
const checksumSize = 4

// entryChecksum returns the checksum (CRC-32C) of all of an entry: index, term,
// type and data. It is stored and sent with the entry, in Extensions, also for
// entries that Raft itself creates.
func entryChecksum(entry *raft.Log) []byte {
	var head [17]byte
	binary.BigEndian.PutUint64(head[:], entry.Index)
	binary.BigEndian.PutUint64(head[8:], entry.Term)
	head[16] = byte(entry.Type)
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, entry.Data)
	return binary.BigEndian.AppendUint32(make([]byte, 0, checksumSize), sum)
}

// checkLog checks the checksum of an entry, and the inner checksum of a
// command. Entries of earlier releases have no outer checksum.
func checkLog(entry *raft.Log) error {
	if len(entry.Extensions) > 0 && !bytes.Equal(entry.Extensions, entryChecksum(entry)) {
		return fmt.Errorf("entry %d of term %d: %w: checksum does not match", entry.Index, entry.Term, errInvalidEntry)
	}
	if entry.Type != raft.LogCommand {
		return nil
	}
	if err := checkEntry(entry.Data); err != nil {
		return fmt.Errorf("entry %d of term %d: %w", entry.Index, entry.Term, err)
	}
	return nil
}
