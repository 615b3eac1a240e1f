package node

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"yardmaster/internal/backoff"
	"yardmaster/job"
	"yardmaster/ledger"
)

// verbProof asks a member for the hash that it has made at an index.
const verbProof = "proof"

// How hashes are compared.
const (
	keptProofs = 8                // hashes a node remembers
	proofTime  = 15 * time.Second // for all members to have made theirs
	proofAgain = 250 * time.Millisecond
	proofAsk   = time.Second
	proofStay  = 3 * time.Second // of one that has diverged, for the others to see it
)

// proofs compares this node's ledger with the others', at the entries where the
// authority asks for it. It works on copies, beside everything else.
type proofs struct {
	node *Node

	mu    sync.Mutex
	made  []proofJSON       // newest last
	asked map[uint64]int    // how often each was told to others
	wrong map[string]string // what was found of members, in words; "": of all
}

func newProofs(n *Node) *proofs { return &proofs{node: n, asked: map[uint64]int{}} }

// run makes hashes and compares them until ctx ends, or until this node's ledger
// is found to be another one than the majority's.
func (p *proofs) run(ctx context.Context) error {
	for {
		select {
		case l := <-p.node.raft.ToProve():
			if err := p.prove(ctx, l); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *proofs) prove(ctx context.Context, l *ledger.Ledger) error {
	hash, err := l.Hash()
	if err != nil {
		return fmt.Errorf("encode the ledger: %w", err)
	}
	mine := proofJSON{Node: p.node.cfg.Node.Name, Index: l.Index(), Hash: hex.EncodeToString(hash[:])}
	p.mu.Lock()
	p.made = append(p.made, mine)
	p.made = p.made[max(0, len(p.made)-keptProofs):]
	maps.DeleteFunc(p.asked, func(index uint64, _ int) bool { return index < p.made[0].Index })
	p.mu.Unlock()
	members := p.node.memberNames()
	hashes := p.gather(ctx, mine, members)
	v := compare(hashes, members)
	if ctx.Err() != nil {
		return nil
	}
	p.note(&v, mine.Index, hashes, members)
	if !slices.Contains(v.diverged, mine.Node) {
		return nil
	}
	p.stay(ctx, mine.Index, len(members)-1)
	text := fmt.Sprintf("this node's ledger is not the yard's at entry %d: its hash begins with %s, the majority's with %s", mine.Index, short(mine.Hash), short(v.majority))
	p.node.markDiverged(text)
	return &HaltError{ExitDamaged, fmt.Errorf("%s; %s", text, p.node.replaceText())}
}

// note keeps what was found. What was found of a member that could not be asked
// this time, because it has ended itself perhaps, stays; so does that there is no
// majority, until there is one.
func (p *proofs) note(v *verdict, index uint64, hashes map[string]string, members []string) {
	found := v.texts(index)
	for _, text := range found {
		p.node.log.Error("ledgers are not the same", "finding", text)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for member, text := range p.wrong {
		unseen := hashes[member] == "" && slices.Contains(members, member)
		if unseen || member == "" && v.majority == "" && found[""] == "" {
			found[member] = text
		}
	}
	p.wrong = found
}

// stay waits until so many others have asked for the hash at an index, so that
// they know whose is wrong when this node is gone.
func (p *proofs) stay(ctx context.Context, index uint64, others int) {
	ctx, cancel := context.WithTimeout(ctx, proofStay)
	defer cancel()
	for {
		p.mu.Lock()
		known := p.asked[index] >= others
		p.mu.Unlock()
		if known || backoff.Sleep(ctx, proofAgain) != nil {
			return
		}
	}
}

// gather asks all members for their hash at an index, and again those that have
// not come to it, for as long as a member that runs may take.
func (p *proofs) gather(ctx context.Context, mine proofJSON, members []string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	hashes := map[string]string{mine.Node: mine.Hash}
	for {
		for _, member := range members {
			if hashes[member] != "" {
				continue
			}
			var theirs proofJSON
			asking, done := context.WithTimeout(ctx, proofAsk)
			if err := p.node.askNode(asking, member, verbProof, mine.Index, &theirs); err == nil && theirs.Index == mine.Index {
				hashes[member] = theirs.Hash
			}
			done()
		}
		if len(hashes) == len(members) {
			return hashes
		}
		select {
		case <-time.After(proofAgain):
		case <-ctx.Done():
			return hashes
		}
	}
}

// serve tells the hash at an index; one with index 0 if there is none, perhaps not
// yet.
func (p *proofs) serve(_ context.Context, request []byte) ([]byte, error) {
	var index uint64
	if err := json.Unmarshal(request, &index); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, made := range p.made {
		if made.Index == index {
			p.asked[index]++
			return json.Marshal(made)
		}
	}
	return json.Marshal(proofJSON{})
}

// reasons are what comparisons found, for readiness.
func (p *proofs) reasons() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Values(p.wrong))
}

// verdict is what hashes say together.
type verdict struct {
	majority string   // the hash that most members have; "": none has most
	diverged []string // members with another one
	split    []string // members whose hashes differ while no majority is known
}

// compare judges the hashes of members: who has another one than a majority of
// all has diverged.
func compare(hashes map[string]string, members []string) (v verdict) {
	votes := map[string]int{}
	for _, hash := range hashes {
		votes[hash]++
	}
	for hash, n := range votes {
		if n > len(members)/2 {
			v.majority = hash
		}
	}
	for member, hash := range hashes {
		switch {
		case len(votes) < 2:
		case v.majority == "":
			v.split = append(v.split, member)
		case hash != v.majority:
			v.diverged = append(v.diverged, member)
		}
	}
	slices.Sort(v.diverged)
	slices.Sort(v.split)
	return v
}

// texts say what a verdict means and what to do, by member; "" is of several.
func (v *verdict) texts(index uint64) map[string]string {
	texts := map[string]string{}
	for _, member := range v.diverged {
		texts[member] = fmt.Sprintf("member %s's ledger is not the yard's at entry %d: it ends itself; run 'yardmaster cluster replace %s'", member, index, member)
	}
	if len(v.split) > 0 {
		texts[""] = fmt.Sprintf("the ledgers of %s differ at entry %d, and no majority says which is right: start the other members", strings.Join(v.split, ", "), index)
	}
	return texts
}

func short(hash string) string { return hash[:min(8, len(hash))] }

// divergedFile marks a data directory whose ledger was found to be wrong.
const divergedFile = "diverged"

// markDiverged keeps the node from starting again on what it holds.
func (n *Node) markDiverged(text string) {
	if err := os.WriteFile(filepath.Join(n.cfg.Node.DataDir, divergedFile), []byte(text+"\n"), 0o600); err != nil {
		n.log.Error("the directory is not marked", "error", err)
	}
}

// refuseDiverged refuses to start on such a directory: replayed, its log might
// come to the right ledger this time, and nobody would know.
func (n *Node) refuseDiverged() error {
	text, err := os.ReadFile(filepath.Join(n.cfg.Node.DataDir, divergedFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look whether the ledger has diverged: %w", err)
	}
	return &HaltError{ExitDamaged, fmt.Errorf("%s; %s", strings.TrimSpace(string(text)), n.replaceText())}
}
