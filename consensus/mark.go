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
	"sync"

	"github.com/hashicorp/raft"
)

// markFile is the name of a node's marks, beside raft's own files.
const markFile = "marks.json"

// marks are what this node has promised, and how far it has seen each member
// come: kept beside raft's store, so that an older copy of either is noticed. A
// voter that has forgotten a vote, or an entry that it had acknowledged, could
// undo what a quorum has decided.
//
// They are written after what they tell of, so a crash in between leaves them
// behind the store, never ahead of it.
type marks struct {
	path string

	mu    sync.Mutex
	now   promises
	saved string // what the file says
}

// promises is the content of the file.
type promises struct {
	Term     uint64            `json:"term"`      // the highest this node has seen
	VoteTerm uint64            `json:"vote_term"` // in which it voted last
	Vote     string            `json:"vote"`      // for whom
	Index    uint64            `json:"index"`     // the log reached so far, and all of it was committed
	Peers    map[string]uint64 `json:"peers"`     // by raft id: how far its log has reached at least
}

// markRecord is the file: the promises and their checksum (CRC-32C).
type markRecord struct {
	Sum   uint32          `json:"sum"`
	Marks json.RawMessage `json:"marks"`
}

// loadMarks reads the marks in dir; without a file there are none.
func loadMarks(dir string) (*marks, error) {
	m := &marks{path: filepath.Join(dir, markFile)}
	raw, err := os.ReadFile(m.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, nil
	case err != nil:
		return nil, fmt.Errorf("read marks: %w", err)
	}
	var r markRecord
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", markFile, err)
	}
	if crc32.Checksum(r.Marks, castagnoli) != r.Sum {
		return nil, fmt.Errorf("%s does not match its checksum", markFile)
	}
	m.saved = string(r.Marks)
	return m, json.Unmarshal(r.Marks, &m.now)
}

// save writes the marks if they have changed.
func (m *marks) save() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, err := json.Marshal(m.now)
	if err != nil || string(body) == m.saved {
		return err
	}
	raw, err := json.Marshal(markRecord{Sum: crc32.Checksum(body, castagnoli), Marks: body})
	if err != nil {
		return err
	}
	if err := writeDurably(m.path, raw); err != nil {
		return fmt.Errorf("write marks: %w", err)
	}
	m.saved = string(body)
	return nil
}

func writeDurably(path string, raw []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// note changes the marks; they are saved when save is called.
func (m *marks) note(change func(*promises)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.now)
}

// reached notes that a member has the log up to index, all of it committed.
func (m *marks) reached(id string, index uint64) {
	m.note(func(p *promises) {
		if index <= p.Peers[id] {
			return
		}
		if p.Peers == nil {
			p.Peers = make(map[string]uint64)
		}
		p.Peers[id] = index
	})
}

// floor is how far the member's log has reached at least, 0 if nobody knows.
func (m *marks) floor(id string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.Peers[id]
}

// only forgets members that are not of the group any more.
func (m *marks) only(members []MemberInfo) {
	m.note(func(p *promises) {
		maps.DeleteFunc(p.Peers, func(id string, _ uint64) bool {
			for _, member := range members {
				if member.ID == id {
					return false
				}
			}
			return true
		})
	})
}

// Raft's own names for what it keeps.
const (
	keyTerm     = "CurrentTerm"
	keyVoteTerm = "LastVoteTerm"
	keyVote     = "LastVoteCand"
)

// kept holds what the store keeps against the marks. last is how far the log
// reaches, with the snapshot before it.
func (m *marks) kept(store raft.StableStore, last uint64) error {
	term, err := stored(store.GetUint64([]byte(keyTerm)))
	voteTerm, err2 := stored(store.GetUint64([]byte(keyVoteTerm)))
	vote, err3 := stored(store.Get([]byte(keyVote)))
	if err := errors.Join(err, err2, err3); err != nil {
		return fmt.Errorf("read raft's term and vote: %w", err)
	}
	p := m.now
	switch {
	case term < p.Term:
		return fmt.Errorf("it knows term %d, and has been in term %d", term, p.Term)
	case voteTerm < p.VoteTerm:
		return fmt.Errorf("it has voted in term %d, and knows of none after term %d", p.VoteTerm, voteTerm)
	case voteTerm == p.VoteTerm && string(vote) != p.Vote:
		return fmt.Errorf("in term %d it has voted for %q, and says %q", voteTerm, p.Vote, vote)
	case last < p.Index:
		return fmt.Errorf("its log ends at entry %d, and has been at %d", last, p.Index)
	}
	return nil
}

// stored takes a value that was never written for a zero one.
func stored[T any](v T, err error) (T, error) {
	if err != nil && err.Error() == "not found" { // as raft itself tells it
		var zero T
		return zero, nil
	}
	return v, err
}
