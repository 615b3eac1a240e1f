package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/consensus"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/membership"
)

// What nodes say to each other about members: verbMembers is a
// [membership.Question] to the authority, verbWord asks a node how it does; the
// other two tell a node that its votes count from now on, or that it is out.
const (
	verbMembers = "members"
	verbWord    = "word"
	verbVouch   = "vouch"
	verbDismiss = "dismiss"
)

// membersTime is how long a question about members may take: all of them are
// asked, and a change is committed.
const membersTime = 4 * time.Second

// roster binds what a [membership.Keeper] needs to the rooms that have it.
type roster struct{ *Node }

func (y roster) Roll() (roll ledger.Roll) {
	y.raft.View(func(l *ledger.Ledger) { roll = l.Roll() })
	return roll
}

func (y roster) Do(ctx context.Context, c ledger.Command) error {
	r, _, err := y.mind.Do(ctx, c)
	return errors.Join(err, r.Err)
}

// Founders are who formed the yard, where this node's configuration says.
func (y roster) Founders() []ledger.Member {
	var all []ledger.Member
	for _, seat := range y.id.Roster {
		m := ledger.Member{Node: seat.Node, Dir: seat.Dir, State: ledger.Present}
		for _, declared := range y.cfg.Cluster.Members {
			if declared.Name == seat.Node {
				m.Route, m.Raft = declared.Route, declared.Raft
			}
		}
		all = append(all, m)
	}
	return all
}

func (y roster) Servers() []membership.Server {
	var all []membership.Server
	for _, m := range y.raft.Status().Members {
		all = append(all, membership.Server{ID: m.ID, Voter: m.Voter})
	}
	return all
}

func (y roster) Last() uint64 { return y.raft.Status().Commit }

func (y roster) Admit(ctx context.Context, id string, vote bool) error {
	return y.raft.Admit(ctx, id, vote)
}

func (y roster) Unseat(ctx context.Context, id string) error { return y.raft.Expel(ctx, id) }

func (y roster) Meet(addr string) (membership.Newcomer, error) {
	who, err := y.raft.Meet(addr)
	return membership.Newcomer{Node: who.Node, Dir: who.Dir, Yard: who.Yard, Used: who.YardID != ""}, err
}

func (y roster) Routed() []string { return y.messages.Routed() }

func (y roster) Streams(ctx context.Context) ([]membership.StreamCopies, error) {
	streams, err := y.messages.Streams(ctx)
	all := make([]membership.StreamCopies, len(streams))
	for i, s := range streams {
		all[i] = membership.StreamCopies{Stream: s.Stream, Want: s.Want, Copies: y.seats(s.Copies)}
	}
	return all, err
}

// seats names copies by their seats, also those whose server is forgotten.
func (y roster) seats(copies []cluster.Copy) []membership.Copy {
	roll := y.Roll()
	all := make([]membership.Copy, len(copies))
	for i := range copies {
		c := &copies[i]
		all[i] = membership.Copy{ID: c.Identity, Leader: c.Leader, Current: c.Current, Offline: c.Offline, Lag: c.Lag}
		for n := range roll.Members {
			if id := roll.Members[n].ID(); c.Is(id) {
				all[i].ID = id
			}
		}
	}
	return all
}

func (y roster) Evacuate(ctx context.Context, id string) error { return y.messages.Evacuate(ctx, id) }
func (y roster) Expel(ctx context.Context, id string) error    { return y.messages.Expel(ctx, id) }

func (y roster) Ask(ctx context.Context, node string) (w membership.Word, err error) {
	if node == y.cfg.Node.Name {
		return y.word(ctx), nil
	}
	return w, y.askNode(ctx, node, verbWord, struct{}{}, &w)
}

func (y roster) Vouch(ctx context.Context, node, id string) error {
	return y.askNode(ctx, node, verbVouch, id, new(struct{}))
}

func (y roster) Dismiss(ctx context.Context, node, id string) error {
	return y.askNode(ctx, node, verbDismiss, id, new(struct{}))
}

// HandOver gives the authority to a member, or to the first that takes it.
func (y roster) HandOver(ctx context.Context, to string) error {
	_, err := y.giveAuthority(ctx, to)
	return err
}

// giveAuthority gives it to a member, with "" to the first other one that
// counts and takes it.
func (n *Node) giveAuthority(ctx context.Context, to string) (steppedDown, error) {
	from, _, _ := n.watch.authority()
	next := []string{to}
	if to == "" {
		next = slices.DeleteFunc(roster{n}.Roll().Present(), func(name string) bool { return name == from })
	} else if !n.commander.isMember(to) {
		return steppedDown{}, &cluster.APIError{Code: "404", Text: fmt.Sprintf("there is no member %q to take the authority", to)}
	}
	refused := error(&cluster.APIError{Code: "409", Text: "there is no other member to hand the authority to"})
	for _, name := range next {
		if _, _, err := n.commander.handOver(ctx, &ledger.AcquireAuthority{Owner: name, LeaseID: "transfer", LeasedUntil: "transfer"}); err != nil {
			refused = err
			continue
		}
		var epoch uint64
		n.raft.View(func(l *ledger.Ledger) { epoch = l.Authority().Epoch })
		return steppedDown{from, name, epoch}, nil
	}
	return steppedDown{}, refused
}

// word is how this node does.
func (n *Node) word(ctx context.Context) membership.Word {
	copies, led := n.messages.Meta()
	w := membership.Word{
		ID: n.id.ID(), Version: n.version, Applied: n.raft.Status().Applied, Running: n.hands.Running(), Led: led,
		Meta: roster{n}.seats(copies), Declares: n.declares(),
	}
	if err := n.messages.Health(ctx); err != nil {
		w.JetStream = err.Error()
	} else if under := n.rebuilds.status().under(); under != "" {
		w.JetStream = "it " + under
	}
	return w
}

// declares lists the members of this node's configuration, if the yard has
// others.
func (n *Node) declares() string {
	have, declared := roster{n}.Roll().Present(), n.cfg.members()
	slices.Sort(have)
	if slices.Equal(have, declared) {
		return ""
	}
	return strings.Join(declared, ",")
}

func (n *Node) serveWord(ctx context.Context, _ []byte) ([]byte, error) {
	return json.Marshal(n.word(ctx))
}

// aboutMe reads the seat that a message is about: a name may belong to another
// directory by now.
func (n *Node) aboutMe(payload []byte) error {
	var id string
	if err := json.Unmarshal(payload, &id); err != nil {
		return &job.InvalidError{Reason: err.Error()}
	}
	if id != n.id.ID() {
		return &cluster.APIError{Code: "409", Text: "this is " + n.id.ID()}
	}
	return nil
}

func (n *Node) serveVouch(_ context.Context, payload []byte) ([]byte, error) {
	if err := n.aboutMe(payload); err != nil {
		return nil, err
	}
	return []byte("{}"), n.raft.Vouch()
}

func (n *Node) serveDismiss(_ context.Context, payload []byte) ([]byte, error) {
	if err := n.aboutMe(payload); err != nil {
		return nil, err
	}
	if err := n.id.Dismiss(); err != nil {
		return nil, err
	}
	select {
	case n.dismissed <- &consensus.GoneError{Seat: n.id.Seat}:
	default:
	}
	return []byte("{}"), nil
}

// followRoll goes by the ledger's roll from change to change, until this node
// is out.
func (n *Node) followRoll(ctx context.Context) error {
	var heeded uint64
	var lanes []string
	for {
		_, changed := n.raft.Applied()
		var roll ledger.Roll
		n.raft.View(func(l *ledger.Ledger) {
			roll = l.Roll()
			if have := identitiesOf(l); len(have) > 0 && !slices.Equal(have, lanes) {
				lanes = have
				n.messages.KnowLanes(lanes)
			}
		})
		if roll.Revision > heeded {
			heeded = roll.Revision
			if err := n.heedRoll(roll); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case err := <-n.dismissed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// heedRoll keeps a roll in the data directory and lets every room go by it.
func (n *Node) heedRoll(roll ledger.Roll) error {
	kept := consensus.Roll{Revision: roll.Revision}
	var peers []cluster.Peer
	for i := range roll.Members {
		m := &roll.Members[i]
		kept.Peers = append(kept.Peers, consensus.Peer{
			Seat: consensus.Seat{Node: m.Node, Dir: m.Dir}, Raft: m.Raft, Route: m.Route, Since: m.Since,
		})
		if m.State != ledger.Leaving {
			peers = append(peers, cluster.Peer{Node: m.Node, Identity: m.ID(), Route: m.Route})
		}
		if m.ID() == n.id.ID() {
			n.heedLeaving(m.State == ledger.Leaving)
		}
	}
	if n.cfg.Clustered() {
		n.messages.SetPeers(peers)
	}
	if differs := n.declares(); differs != "" && n.cfg.Clustered() {
		n.log.Info("the configuration lists other members than the yard has; the yard's are what counts",
			"configured", differs, "members", strings.Join(roll.Present(), ","))
	}
	return n.id.Enroll(kept)
}

// heedLeaving has this member take no more work once it is to go, and again when that
// was taken back: who replaces it was not let in.
func (n *Node) heedLeaving(leaves bool) {
	switch {
	case leaves == n.goes:
		return
	case leaves:
		n.log.Warn("this member is being taken out of the yard: it takes no more work")
		n.hands.Drain()
		n.edge.Drain("this member is taken out of the yard")
	default:
		n.log.Info("this member stays in the yard after all: it takes work again")
		n.drain.ifDrained(false, func() {
			n.hands.Resume()
			n.edge.Resume()
		})
	}
	n.goes = leaves
}

// askMembers puts a question to the authority's keeper, wherever that is.
func (n *Node) askMembers(ctx context.Context, q membership.Question) (v membership.View, err error) {
	if !n.cfg.Clustered() {
		return v, &cluster.APIError{Code: "409", Text: "this node runs alone: it has no members; docs/backup.md tells how a yard of one becomes one of three"}
	}
	ctx, cancel := context.WithTimeout(ctx, membersTime)
	defer cancel()
	for {
		owner, changed := n.watch.holder()
		switch owner {
		case "":
			err = errNoHolder
		case n.cfg.Node.Name:
			v, err = n.members(ctx, q)
		default:
			err = n.askNode(ctx, owner, verbMembers, q, &v)
		}
		var api *cluster.APIError
		if err == nil || !notThere(err) && !(errors.As(err, &api) && api.Code == codeNoTenure) {
			return v, err
		}
		select { // the authority has changed hands, or is about to
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return v, &job.UnavailableError{Reason: "no authority answers", RetryAfter: time.Second}
		}
	}
}

var errNoHolder = &cluster.APIError{Code: codeNoTenure, Text: "no authority is known"}

// members answers a question on the authority itself.
func (n *Node) members(ctx context.Context, q membership.Question) (membership.View, error) {
	if q.Verb != membership.Show {
		var under string
		n.raft.View(func(l *ledger.Ledger) { _, under = l.Bringing() })
		if under != "" { // the ledger says so too, when all has been looked at
			return membership.View{}, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%v (of %s); wait for its end, or give it up by 'yardmaster restore --abandon'", ledger.ErrBringing, under)}
		}
		if err := n.roll.Begin(ctx, q); err != nil {
			return membership.View{}, membersRefusal(err)
		}
	}
	return n.roll.View(ctx), nil
}

func membersRefusal(err error) error {
	var refused *membership.RefusedError
	switch {
	case errors.Is(err, membership.ErrMoved), notThere(err):
		return &cluster.APIError{Code: codeNoTenure, Text: err.Error()}
	case errors.Is(err, ledger.ErrMemberNotFound):
		return &cluster.APIError{Code: "404", Text: err.Error()}
	case errors.As(err, &refused), errors.Is(err, ledger.ErrMembersChanging), errors.Is(err, ledger.ErrBringing), errors.Is(err, ledger.ErrNoChange),
		errors.Is(err, ledger.ErrMemberExists), errors.Is(err, ledger.ErrMemberCount):
		return &cluster.APIError{Code: "409", Text: err.Error()}
	}
	return err
}

func (n *Node) serveMembers(ctx context.Context, payload []byte) ([]byte, error) {
	var q membership.Question
	if err := json.Unmarshal(payload, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	if owner, _, _ := n.watch.authority(); owner != n.cfg.Node.Name {
		return nil, errNoHolder
	}
	v, err := n.members(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// membersQuestion is what a client asks about members.
type membersQuestion struct {
	Name  string `json:"name"`
	With  string `json:"with"`
	Route string `json:"route"`
	Raft  string `json:"raft"`
	To    string `json:"to"`
}

// membersVerb answers one of the questions about members.
func (n *Node) membersVerb(verb string) func(context.Context, *cluster.Request) (any, error) {
	return func(ctx context.Context, r *cluster.Request) (any, error) {
		q, err := ask[membersQuestion](r)
		if err != nil {
			return nil, err
		}
		for _, a := range []struct{ key, value string }{{"route", q.Route}, {"raft", q.Raft}} {
			if a.value != "" {
				if err := hostPort(a.key, a.value); err != nil {
					return nil, &job.InvalidError{Reason: err.Error()}
				}
			}
		}
		return n.askMembers(ctx, membership.Question{Verb: verb, Name: q.Name, With: q.With, Route: q.Route, Raft: q.Raft})
	}
}

// handleTransfer hands the authority on, from whichever node is asked.
func (n *Node) handleTransfer(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[membersQuestion](r)
	if err != nil {
		return nil, err
	}
	if owner, _, _ := n.watch.authority(); q.To != "" && q.To == owner {
		return nil, &cluster.APIError{Code: "409", Text: owner + " holds the authority already"}
	}
	return n.giveAuthority(ctx, q.To)
}
