package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/boltcheck"
	"github.com/yardmaster-dev/yardmaster/consensus/wal"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

// oldFile is the file in which earlier releases had Raft's log, term and vote.
const oldFile = "raft.db"

// migrate moves the content of oldFile, if it is there, to the log and to stableFile. The
// files are only used once stableFile is there, which is created last. If the process
// ends before, the next start begins again; if it ends after, oldFile is removed.
func migrate(dir string) error {
	old, stable := filepath.Join(dir, oldFile), filepath.Join(dir, stableFile)
	if _, err := os.Stat(old); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if _, err := os.Stat(stable); errors.Is(err, fs.ErrNotExist) {
		unfinished := stable + ".new"
		log := filepath.Join(dir, logDir)
		if err := copyOld(old, log, unfinished); err != nil {
			return errors.Join(err, os.RemoveAll(log), os.RemoveAll(unfinished)) // the disk may be full
		}
		if err := durable.SyncDir(dir); err != nil {
			return err
		}
		if err := os.Rename(unfinished, stable); err != nil {
			return err
		}
		if err := durable.SyncDir(dir); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := os.Remove(old); err != nil {
		return err
	}
	return durable.SyncDir(dir)
}

// copyOld copies the content of the file old to a new log and a new file.
func copyOld(old, log, stable string) error {
	if err := boltcheck.Check(old); err != nil {
		return &DamagedError{What: oldFile, Err: err}
	}
	if err := errors.Join(os.RemoveAll(log), os.RemoveAll(stable)); err != nil {
		return err
	}
	from, err := openBolt(old, true)
	if err != nil {
		return err
	}
	if err := copyLog(log, from); err != nil {
		return errors.Join(err, from.Close())
	}
	to, err := openBolt(stable, false)
	if err != nil {
		return errors.Join(err, from.Close())
	}
	return errors.Join(copyStable(to, from), to.Close(), from.Close())
}

// copyLog creates a log with the entries of old, each of which it checks. Entries before a
// gap are not copied: a snapshot that this member was sent has replaced them.
func copyLog(path string, old raft.LogStore) (err error) {
	log, err := wal.Open(path, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	first, err1 := old.FirstIndex()
	last, err2 := old.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var batch []*raft.Log
	for i := first; i <= last && last > 0; i++ {
		entry := new(raft.Log)
		switch err := old.GetLog(i, entry); {
		case errors.Is(err, raft.ErrLogNotFound):
			batch = nil
			if err := log.DeleteRange(first, i); err != nil {
				return err
			}
			continue
		case err != nil:
			return &DamagedError{What: oldFile, Err: fmt.Errorf("entry %d: %w", i, err)}
		}
		if err := checkLog(entry); err != nil {
			return &DamagedError{What: oldFile, Err: err}
		}
		if batch = append(batch, entry); len(batch) == maxAppendEntries || i == last {
			if err := log.StoreLogs(batch); err != nil {
				return err
			}
			batch = nil
		}
	}
	return nil
}

// copyStable copies the term and the vote.
func copyStable(to, from raft.StableStore) error {
	term, err1 := zeroIfMissing(from.GetUint64([]byte(keyTerm)))
	voteTerm, err2 := zeroIfMissing(from.GetUint64([]byte(keyVoteTerm)))
	vote, err3 := zeroIfMissing(from.Get([]byte(keyVote)))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	return errors.Join(to.SetUint64([]byte(keyTerm), term), to.SetUint64([]byte(keyVoteTerm), voteTerm), to.Set([]byte(keyVote), vote))
}
