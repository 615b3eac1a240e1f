package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits of the number of members. Four members tolerate no more losses than
// three; four is a step on the way to five.
const (
	MinMembers = 3
	MaxMembers = 5
)

// MemberState is how far a member has joined or left.
type MemberState uint8

// The states of a member.
const (
	MemberOut     MemberState = iota // not in the list any more
	MemberJoining                    // added, does not vote yet
	MemberPresent                    // a voting member
	MemberLeaving                    // does not count any more, being removed
)

func (s MemberState) String() string {
	if int(s) >= len(memberStateNames) {
		return "unknown"
	}
	return memberStateNames[s]
}

var memberStateNames = [...]string{"out", "joining", "present", "leaving"}

// Member is a member of the cluster: a node's name bound to one data directory.
type Member struct {
	Node, Dir    string
	Route, Raft  string // host:port, as reachable from the other members
	JoinRevision uint64 // the revision in which it was added; 0: a bootstrap member
	State        MemberState
}

// ServerID returns the member's Raft server id: "<node>-<directory>".
func (m *Member) ServerID() string { return m.Node + "-" + m.Dir }

// Membership is the list of members. Revision increases with every change; 0
// means that the ledger does not have the list yet.
type Membership struct {
	Revision uint64
	Members  []Member // by name; read-only
}

// PresentNodes returns the names of the members that are present.
func (m Membership) PresentNodes() (names []string) {
	for i := range m.Members {
		if m.Members[i].State == MemberPresent {
			names = append(names, m.Members[i].Node)
		}
	}
	return names
}

// Pending returns the members that are joining and leaving, or nil.
func (m Membership) Pending() (joining, leaving *Member) {
	for i := range m.Members {
		switch m.Members[i].State {
		case MemberJoining:
			joining = &m.Members[i]
		case MemberLeaving:
			leaving = &m.Members[i]
		}
	}
	return joining, leaving
}

// Errors that refuse a change of membership.
var (
	ErrMembersChanging = errors.New("a change of members is under way")
	ErrNoChange        = errors.New("no change of members is under way that could be cancelled")
	ErrMemberExists    = errors.New("a member of that name exists already")
	ErrMemberNotFound  = errors.New("no such member")
	ErrMemberCount     = fmt.Errorf("a yard has %d to %d members", MinMembers, MaxMembers)
	ErrMemberState     = errors.New("the member is not in the state that this step starts from")
)

// SetMembers stores the bootstrap members. It has no effect once there is a
// list.
type SetMembers struct{ Members []Member }

// ChangeMembers begins a change of membership if none is pending: Join is
// added, Leave is removed; both together are a replacement. With Cancel it
// instead cancels a pending join or replacement, as long as the new member does
// not vote.
type ChangeMembers struct {
	Join   *Member
	Leave  string // server id of the member to remove; "": none
	Cancel bool
	Asked
}

// AdvanceMember moves a member from one state to the next in a pending change.
type AdvanceMember struct {
	ServerID string
	From, To MemberState
}

func (*SetMembers) Kind() Kind    { return KindSetMembers }
func (*ChangeMembers) Kind() Kind { return KindChangeMembers }
func (*AdvanceMember) Kind() Kind { return KindAdvanceMember }

// Membership returns the list of members. It is read-only.
func (l *Ledger) Membership() Membership { return l.membership }

// set stores a new list. It does not modify the old one, which readers may
// hold.
func (m *Membership) set(members []Member) Result {
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), cmp.Compare(a.JoinRevision, b.JoinRevision))
	})
	*m = Membership{m.Revision + 1, members}
	return Result{}
}

func (c *SetMembers) apply(l *Ledger) Result {
	if l.membership.Revision > 0 {
		return Result{} // later changes are not reverted
	}
	result := l.membership.set(slices.Clone(c.Members))
	l.actOnMembers(Actor{}, "cluster.bootstrap", "")
	return result
}

// apply begins a change, or cancels the pending one. It refuses a change while
// another is pending, and one that would leave too few or too many members; a
// replacement may always begin.
func (c *ChangeMembers) apply(l *Ledger) Result {
	joining, leaving := l.membership.Pending()
	if c.Cancel {
		if joining == nil {
			return Result{Err: ErrNoChange}
		}
		result := l.membership.cancelChange()
		l.actOnMembers(c.By, "cluster.cancel", joining.ServerID())
		return result
	}
	if joining != nil || leaving != nil {
		return Result{Err: fmt.Errorf("%w: %s", ErrMembersChanging, l.membership.PendingChange())}
	}
	if c.Join == nil && c.Leave == "" {
		return Result{Err: ErrNoChange}
	}

	members := slices.Clone(l.membership.Members)
	count := len(members)
	if c.Leave != "" {
		i := slices.IndexFunc(members, func(m Member) bool { return m.ServerID() == c.Leave })
		if i < 0 {
			return Result{Err: fmt.Errorf("%s: %w", c.Leave, ErrMemberNotFound)}
		}
		members[i].State = MemberLeaving
		count--
	}
	if c.Join != nil {
		if slices.ContainsFunc(members, func(m Member) bool { return m.Node == c.Join.Node && m.State == MemberPresent }) {
			return Result{Err: fmt.Errorf("%s: %w", c.Join.Node, ErrMemberExists)}
		}
		joiner := *c.Join
		joiner.State, joiner.JoinRevision = MemberJoining, l.membership.Revision+1
		members = append(members, joiner)
		count++
	}
	tooMany := c.Join != nil && count > MaxMembers
	tooFew := c.Join == nil && count < MinMembers
	if tooMany || tooFew {
		return Result{Err: fmt.Errorf("%d members after this: %w", count, ErrMemberCount)}
	}
	result := l.membership.set(members)
	switch {
	case c.Join == nil:
		l.actOnMembers(c.By, "cluster.rm", c.Leave)
	case c.Leave == "":
		l.actOnMembers(c.By, "cluster.add", c.Join.ServerID())
	default:
		l.actOnMembers(c.By, "cluster.replace", c.Leave+" by "+c.Join.ServerID())
	}
	return result
}

// actOnMembers is act for the list of members, which the act has changed.
func (l *Ledger) actOnMembers(by Actor, action, target string) {
	l.act(by, action, Event{}, target, settingsOfMembers(l.membership.Members))
}

// cancelChange removes the joining member again and keeps the member that it
// was to replace.
func (m *Membership) cancelChange() Result {
	members := slices.Clone(m.Members)
	for i := range members {
		switch members[i].State {
		case MemberJoining:
			members[i].State = MemberLeaving
		case MemberLeaving:
			members[i].State = MemberPresent
		}
	}
	return m.set(members)
}

// apply completes a join or a removal: joining becomes present, leaving becomes
// out. It refuses every other step. A member that is replaced leaves last.
func (c *AdvanceMember) apply(l *Ledger) Result {
	members := slices.Clone(l.membership.Members)
	i := slices.IndexFunc(members, func(m Member) bool { return m.ServerID() == c.ServerID })
	joining, _ := l.membership.Pending()
	switch {
	case i < 0 || members[i].State != c.From:
		return Result{Err: fmt.Errorf("%s, from %s to %s: %w", c.ServerID, c.From, c.To, ErrMemberState)}
	case c.From == MemberLeaving && joining != nil:
		return Result{Err: fmt.Errorf("%s cannot leave before %s has joined: %w", c.ServerID, joining.ServerID(), ErrMemberState)}
	case c.From == MemberJoining && c.To == MemberPresent:
		members[i].State = MemberPresent
	case c.From == MemberLeaving && c.To == MemberOut:
		members = slices.Delete(members, i, i+1)
	default:
		return Result{Err: fmt.Errorf("%s, from %s to %s: %w", c.ServerID, c.From, c.To, ErrMemberState)}
	}
	result := l.membership.set(members)
	l.actOnMembers(Actor{}, "cluster.advance", fmt.Sprintf("%s from %s to %s", c.ServerID, c.From, c.To))
	return result
}

// PendingChange describes the pending change, or returns "".
func (m Membership) PendingChange() string {
	joining, leaving := m.Pending()
	switch {
	case joining != nil && leaving != nil:
		return leaving.ServerID() + " is replaced by " + joining.ServerID()
	case joining != nil:
		return joining.ServerID() + " joins"
	case leaving != nil:
		return leaving.ServerID() + " leaves"
	}
	return ""
}

// membership encodes or decodes the list of members. A state that no listed
// member has fails with errCorrupt.
func (c *codec) membership(members *Membership) {
	c.fields(&members.Revision)
	list(c, &members.Members, func(m *Member) {
		c.fields(&m.Node, &m.Dir, &m.Route, &m.Raft, &m.JoinRevision, (*uint8)(&m.State))
		if m.State == MemberOut || m.State > MemberLeaving {
			c.fail(errCorrupt)
		}
	})
}
