package roster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Peer is a member as the yard has agreed on it.
type Peer struct {
	Seat
	Raft  string `json:"raft"`  // host:port, as the others reach it
	Route string `json:"route"` // likewise
	// Since is the roll's revision that the member came with; 0: it was there
	// when the yard formed.
	Since uint64 `json:"since,omitempty"`
}

// Roll is who belongs to the yard, as its ledger has it. Its revision grows
// with every change; 0 is no roll yet, and then the founders are the members.
type Roll struct {
	Revision uint64 `json:"revision"`
	Peers    []Peer `json:"peers"`
}

// sits tells that a seat is on the roll.
func (r *Roll) sits(seat Seat) bool {
	return slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.Seat == seat })
}

// sinceBits are the bits of an incarnation below those that a change of the
// roll counts in: a directory that takes over a name begins above all lives
// that the name had before.
const sinceBits = 32

// GoneError says that a directory was taken out of its yard. It is never used
// there again.
type GoneError struct{ Seat Seat }

func (e *GoneError) Error() string {
	return fmt.Sprintf("member %s was taken out of the yard, and its data directory %s with it: it cannot come back under this directory. "+
		"To let the host in again, start the node with an empty data directory and follow what it says", e.Seat.Node, e.Seat.Dir)
}

// Peers are the members as this directory last knew them. Of founders whose
// yard has no roll yet it knows no addresses.
func (i *Identity) Peers() []Peer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.file.peers()
}

func (r *record) peers() []Peer {
	if r.Roll.Revision > 0 {
		return slices.Clone(r.Roll.Peers)
	}
	peers := make([]Peer, len(r.Roster))
	for n, s := range r.Roster {
		peers[n].Seat = s
	}
	return peers
}

// Newcomer tells that this directory came into a yard that had formed.
func (i *Identity) Newcomer() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.file.Since > 0
}

// Enroll keeps a newer roll, on disk first, and lets the door go by it. If
// this directory is not on it, that is kept too, and the error is a
// [*GoneError]. An older roll is passed over.
func (i *Identity) Enroll(roll Roll) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if roll.Revision <= i.file.Roll.Revision {
		return nil
	}
	before, was := i.file.Roll, i.file.Gone
	i.file.Roll, i.file.Gone = roll, !roll.sits(i.Seat)
	if err := i.save(); err != nil {
		i.file.Roll, i.file.Gone = before, was
		return err
	}
	if i.door != nil {
		i.door.enroll(roll)
	}
	if i.file.Gone {
		return &GoneError{i.Seat}
	}
	return nil
}

// Dismiss keeps that this directory is taken out of its yard, whatever its roll
// says.
func (i *Identity) Dismiss() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.file.Gone = true
	return i.save()
}

// consult asks the other members for a newer roll before anything of the node
// starts: a directory that was taken out while it was down must not speak to
// anybody. Who does not answer within a second is not waited for.
func (i *Identity) consult(ctx context.Context, log *slog.Logger) error {
	if i.file.Gone {
		return &GoneError{i.Seat}
	}
	if i.door == nil {
		return nil
	}
	var mu sync.Mutex
	var newest Roll
	var asks sync.WaitGroup
	for _, addr := range i.door.others() {
		asks.Go(func() {
			answer, err := i.door.ask(addr)
			if err != nil || answer.YardID != i.Yard || answer.Roll == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if answer.Roll.Revision > newest.Revision {
				newest = *answer.Roll
			}
		})
	}
	asks.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if newest.Revision > i.file.Roll.Revision {
		log.Info("members changed while this node was down", "revision", newest.Revision, "members", len(newest.Peers))
	}
	return i.Enroll(newest)
}

// Newcomer is what a node says of itself that waits to be let into a yard.
type Newcomer struct {
	Seat
	Yard   string // as people call it
	YardID string // "": it has not formed one, so its directory is empty
}

// Meet asks who answers at addr, within a second.
func (d *Door) Meet(addr string) (Newcomer, error) {
	h, err := d.ask(addr)
	return Newcomer{Seat: h.seat(), Yard: h.Yard, YardID: h.YardID}, err
}

// enroll goes by a newer roll: who is not on it is cut off.
func (d *Door) enroll(roll Roll) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.self.Roll = &roll
	d.places = placesOf(d.declared, roll.Peers)
	for conn, seat := range d.open {
		if seat != (Seat{}) && !roll.sits(seat) {
			conn.Close()
		}
	}
}

// found goes by the founders of a yard that has just formed.
func (d *Door) found(peers []Peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places = placesOf(d.declared, peers)
}

// placesOf is where seats are reached from here, by their ids. Of a founder,
// what this node's configuration declares is right, and may be this node's own
// way to it; who came later is where the yard was told.
func placesOf(declared []Member, peers []Peer) map[string]string {
	places := map[string]string{}
	for _, p := range peers {
		places[p.ID()] = p.Raft
		for _, m := range declared {
			if m.Name == p.Node && m.Addr != "" && (p.Since == 0 || p.Raft == "") {
				places[p.ID()] = m.Addr
			}
		}
	}
	return places
}

// Address is where the member of that seat's id is reached for raft, "" if it
// is none.
func (d *Door) Address(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.places[id]
}

// others lists where the other members may be: by the roll, and as declared.
func (d *Door) others() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var addrs []string
	add := func(node, addr string) {
		if node != d.self.Node && addr != "" && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	for id, addr := range d.places {
		add(NodeOf(id), addr)
	}
	for _, m := range d.declared {
		add(m.Name, m.Addr)
	}
	return addrs
}

// knockEvery is how often a node asks that waits to be let in.
const knockEvery = time.Second

var errNoPlace = errors.New("is no member of this yard, or not any more")
