package consensus

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

// watermarkFile is the file with a node's watermarks, in Raft's directory.
const watermarkFile = "marks.json"

// watermarks are what this node has promised to other members, and how far it
// has seen each member's log reach. They are kept in addition to Raft's store,
// so that an older copy of either is detected: a voter that has forgotten a
// vote, or an entry that it acknowledged, could undo a decision of a quorum.
//
// They are written after the store, so after a crash they may be behind it, but
// never ahead of it.
type watermarks struct {
	path  string
	write func(path string, content []byte) error // durable.WriteFile, except in tests

	saveMu sync.Mutex // held while the file is written
	saved  string     // content of the file; guarded by saveMu

	mu    sync.Mutex // never held while the file is written: a slow disk must not delay heartbeats
	state hardState
}

// hardState is the content of the file.
type hardState struct {
	Term     uint64            `json:"term"`      // highest term that this node has been in
	VoteTerm uint64            `json:"vote_term"` // term in which it voted last
	Vote     string            `json:"vote"`      // raft id of the candidate it voted for
	Index    uint64            `json:"index"`     // the log reached this index, and all of it was committed
	Peers    map[string]uint64 `json:"peers"`     // by raft id: index that its log has reached at least
}

// watermarkRecord is the content of the file: the state and its checksum
// (CRC-32C).
type watermarkRecord struct {
	Sum        uint32          `json:"sum"`
	Watermarks json.RawMessage `json:"marks"`
}

// loadWatermarks reads the watermarks in dir. Without a file they are zero.
func loadWatermarks(dir string) (*watermarks, error) {
	w := &watermarks{path: filepath.Join(dir, watermarkFile), write: durable.WriteFile}
	raw, err := os.ReadFile(w.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return w, nil
	case err != nil:
		return nil, fmt.Errorf("read watermarks: %w", err)
	}
	var r watermarkRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", watermarkFile, err)
	}
	if crc32.Checksum(r.Watermarks, castagnoli) != r.Sum {
		return nil, fmt.Errorf("%s does not match its checksum", watermarkFile)
	}
	w.saved = string(r.Watermarks)
	return w, json.Unmarshal(r.Watermarks, &w.state)
}

// save writes the watermarks if they have changed.
func (w *watermarks) save() error {
	w.saveMu.Lock()
	defer w.saveMu.Unlock()
	w.mu.Lock()
	body, err := json.Marshal(w.state)
	w.mu.Unlock()
	if err != nil || string(body) == w.saved {
		return err
	}
	raw, err := json.Marshal(watermarkRecord{Sum: crc32.Checksum(body, castagnoli), Watermarks: body})
	if err != nil {
		return err
	}
	if err := w.write(w.path, raw); err != nil {
		return fmt.Errorf("write watermarks: %w", err)
	}
	w.saved = string(body)
	return nil
}

// update changes the watermarks in memory; save writes them.
func (w *watermarks) update(change func(*hardState)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.state)
}

// recordPeer records that a member has the log up to index, all of it
// committed.
func (w *watermarks) recordPeer(id string, index uint64) {
	w.update(func(s *hardState) {
		if index <= s.Peers[id] {
			return
		}
		if s.Peers == nil {
			s.Peers = make(map[string]uint64)
		}
		s.Peers[id] = index
	})
}

// peerIndex returns the index that a member's log has reached at least, or 0 if
// it is not known.
func (w *watermarks) peerIndex(id string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Peers[id]
}

// prunePeers forgets servers that are not in the group any more.
func (w *watermarks) prunePeers(members []MemberInfo) {
	w.update(func(s *hardState) {
		maps.DeleteFunc(s.Peers, func(id string, _ uint64) bool {
			return !slices.ContainsFunc(members, func(m MemberInfo) bool { return m.ID == id })
		})
	})
}

// Raft's keys in its stable store.
const (
	keyTerm     = "CurrentTerm"
	keyVoteTerm = "LastVoteTerm"
	keyVote     = "LastVoteCand"
)

// verify returns an error if the store has an older term, vote or log than the
// watermarks record. last is the last index of the log and its snapshot.
func (w *watermarks) verify(store raft.StableStore, last uint64) error {
	term, err := zeroIfMissing(store.GetUint64([]byte(keyTerm)))
	voteTerm, err2 := zeroIfMissing(store.GetUint64([]byte(keyVoteTerm)))
	vote, err3 := zeroIfMissing(store.Get([]byte(keyVote)))
	if err := errors.Join(err, err2, err3); err != nil {
		return fmt.Errorf("read raft's term and vote: %w", err)
	}
	recorded := w.state
	switch {
	case term < recorded.Term:
		return fmt.Errorf("its term is %d, but had reached %d", term, recorded.Term)
	case voteTerm < recorded.VoteTerm:
		return fmt.Errorf("it voted in term %d, but its last recorded vote is in term %d", recorded.VoteTerm, voteTerm)
	case voteTerm == recorded.VoteTerm && string(vote) != recorded.Vote:
		return fmt.Errorf("in term %d it voted for %q, but its recorded vote is for %q", voteTerm, recorded.Vote, vote)
	case last < recorded.Index:
		return fmt.Errorf("its log ends at entry %d, but had reached %d", last, recorded.Index)
	}
	return nil
}

// zeroIfMissing returns zero for a value that was never written.
func zeroIfMissing[T any](v T, err error) (T, error) {
	if err != nil && err.Error() == "not found" { // the text of raft's own error
		var zero T
		return zero, nil
	}
	return v, err
}
