package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"yardmaster/ledger"
)

// What may be asked of the yard's members.
const (
	Show     = "members"
	Add      = "add"
	Remove   = "rm"
	Replace  = "replace"
	Cancel   = "cancel"
	Transfer = "transfer"
)

// Question is what an operator asks.
type Question struct {
	Verb  string `json:"verb"`
	Name  string `json:"name"`            // the member that it is about
	With  string `json:"with,omitempty"`  // Replace: the new member's name; "": the same
	Route string `json:"route,omitempty"` // of who comes in, host:port; Replace: "" is as before
	Raft  string `json:"raft,omitempty"`
	To    string `json:"to,omitempty"` // Transfer: ""  is any member
}

// RefusedError says why a change does not begin, and what would let it.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return e.Text }

func refuse(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// ErrMoved says that the authority was handed on first: ask it.
var ErrMoved = errors.New("the authority was handed on")

// Begin checks that a change may begin now, and commits that it does. It goes on
// by itself; [Keeper.View] shows how far it is. Only the authority's keeper
// can.
//
// Nothing begins unless every other member is heard and well, and every copy of
// every stream on them is current: who goes or comes must be the only thing
// that could go wrong.
func (k *Keeper) Begin(ctx context.Context, q Question) error {
	roll := k.yard.Roll()
	if roll.Revision == 0 {
		return refuse("the ledger has no list of members yet: that takes the authority some seconds, once")
	}
	if q.Verb == Cancel {
		if err := k.yard.Do(ctx, &ledger.ChangeMembers{Cancel: true}); err != nil {
			return err
		}
		k.forget("the change was cancelled")
		return nil
	}
	if under := roll.Under(); under != "" {
		return refuse("%v: %s; wait for its end, or take it back by 'yardmaster cluster cancel'", ledger.ErrMembersChanging, under)
	}
	c, err := k.command(roll, q)
	if err != nil {
		return err
	}
	if c.Leave == k.self {
		if err := k.yard.HandOver(ctx, ""); err != nil {
			return err
		}
		return ErrMoved
	}
	if err := k.well(ctx, roll, c.Leave); err != nil {
		return err
	}
	k.forget("")
	return k.yard.Do(ctx, c)
}

func (k *Keeper) forget(outcome string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.outcome = outcome
}

// command is what a question asks for.
func (k *Keeper) command(roll ledger.Roll, q Question) (*ledger.ChangeMembers, error) {
	old := slices.IndexFunc(roll.Members, func(m ledger.Member) bool { return m.Node == q.Name })
	switch q.Verb {
	case Add:
		if old >= 0 {
			return nil, refuse("%s is a member already; to give its place to another data directory, use 'yardmaster cluster replace %s'", q.Name, q.Name)
		}
		if len(roll.Members) >= ledger.MaxMembers {
			return nil, refuse("the yard has %d members, and %d are the most", len(roll.Members), ledger.MaxMembers)
		}
		joiner, err := k.meet(q.Name, q.Route, q.Raft)
		return &ledger.ChangeMembers{Join: joiner}, err
	case Remove, Replace:
		if old < 0 {
			return nil, refuse("there is no member %q: %s", q.Name, strings.Join(roll.Present(), ", "))
		}
	default:
		return nil, refuse("%q is nothing that can be asked of members", q.Verb)
	}
	out := &roll.Members[old]
	if q.Verb == Remove {
		if len(roll.Members) <= ledger.MinMembers {
			return nil, refuse("the yard has %d members, and %d are the fewest: add one first, or give %s's place to another by 'yardmaster cluster replace %s'",
				len(roll.Members), ledger.MinMembers, q.Name, q.Name)
		}
		return &ledger.ChangeMembers{Leave: out.ID()}, nil
	}
	if slices.Contains(k.yard.Routed(), out.ID()) {
		return nil, refuse("%s is heard with its data directory %s: it needs no replacement. Stop it first if it is to go", q.Name, out.Dir)
	}
	name := q.Name
	if q.With != "" {
		name = q.With
	}
	route, raft := q.Route, q.Raft
	if name == q.Name {
		route, raft = or(route, out.Route), or(raft, out.Raft)
	}
	joiner, err := k.meet(name, route, raft)
	if err == nil && joiner.Dir == out.Dir {
		err = refuse("%s has its data directory %s: it needs no replacement", q.Name, out.Dir)
	}
	return &ledger.ChangeMembers{Join: joiner, Leave: out.ID()}, err
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// meet looks who waits to be let in, and makes a seat of it.
func (k *Keeper) meet(name, route, raft string) (*ledger.Member, error) {
	if name == "" || route == "" || raft == "" {
		return nil, refuse("name the member and both of its addresses: cluster add NAME --route HOST:PORT --raft HOST:PORT")
	}
	who, err := k.yard.Meet(raft)
	switch {
	case err != nil:
		return nil, refuse("nobody answers as a member at %s (%v): start %s with an empty data directory and all members in its configuration, then ask again", raft, err, name)
	case who.Node != name:
		return nil, refuse("at %s a node %q answers, not %q", raft, who.Node, name)
	case who.Yard != k.name:
		return nil, refuse("%s is configured for yard %q, this is %q: set cluster.name", name, who.Yard, k.name)
	case who.Used:
		return nil, refuse("%s's data directory %s belongs to a yard already: start it with an empty one", name, who.Dir)
	}
	return &ledger.Member{Node: name, Dir: who.Dir, Route: route, Raft: raft}, nil
}

// well tells that all members but one are well enough for a change.
func (k *Keeper) well(ctx context.Context, roll ledger.Roll, but string) error {
	words := k.words(ctx, roll)
	last := k.yard.Last()
	for i := range roll.Members {
		m := &roll.Members[i]
		if m.ID() == but {
			continue
		}
		w, heard := words[m.ID()]
		switch {
		case !heard:
			return refuse("member %s is not heard: members change only while all others are well. Start it, or take it out first if it is lost", m.Node)
		case w.JetStream != "":
			return refuse("member %s is not well (%s): members change only while all others are", m.Node, w.JetStream)
		case w.Applied+16*caughtUp < last:
			return refuse("member %s is behind, at %d of %d entries: wait until it has caught up", m.Node, w.Applied, last)
		}
	}
	looking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	streams, err := k.streams(looking)
	if err != nil {
		return refuse("it is not known whether the streams are whole (%v): try again", err)
	}
	for i := range streams {
		s := &streams[i]
		if len(s.Copies) == 0 {
			return refuse("stream %s has no leader that answers: wait until it has", s.Stream)
		}
		for n := range s.Copies {
			if c := &s.Copies[n]; c.ID != but && !c.well() {
				return refuse("the copy of stream %s on %s is not current: wait until it is", s.Stream, c.ID)
			}
		}
	}
	return nil
}
