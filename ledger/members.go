package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// How many members a yard of several nodes has. Four are as many losses as
// three: a step on the way to five.
const (
	MinMembers = 3
	MaxMembers = 5
)

// MemberState is how far a member has come.
type MemberState uint8

// A member that has left the roll altogether is Out.
const (
	Out     MemberState = iota
	Joining             // it is let in and has no vote yet
	Present             // it counts
	Leaving             // it does not count any more, and is being taken out
)

func (s MemberState) String() string {
	if int(s) >= len(memberStates) {
		return "unknown"
	}
	return memberStates[s]
}

var memberStates = [...]string{"out", "joining", "present", "leaving"}

// Member is a seat at the yard: a name bound to one data directory.
type Member struct {
	Node, Dir   string
	Route, Raft string // host:port, as the others reach it
	Since       uint64 // the revision it came with; 0: it was there when the yard formed
	State       MemberState
}

// ID names the seat: "<node>-<directory>".
func (m *Member) ID() string { return m.Node + "-" + m.Dir }

// Roll is who belongs to the yard. Revision grows with every change; at 0 the
// ledger has not been told yet.
type Roll struct {
	Revision uint64
	Members  []Member // by name; not to be changed
}

// Present lists the names of those who count.
func (r Roll) Present() (names []string) {
	for i := range r.Members {
		if r.Members[i].State == Present {
			names = append(names, r.Members[i].Node)
		}
	}
	return names
}

// Changing finds the seats that come and go. With neither nothing is under way.
func (r Roll) Changing() (joining, leaving *Member) {
	for i := range r.Members {
		switch r.Members[i].State {
		case Joining:
			joining = &r.Members[i]
		case Leaving:
			leaving = &r.Members[i]
		}
	}
	return joining, leaving
}

// Errors that refuse a change of members.
var (
	ErrMembersChanging = errors.New("a change of members is under way")
	ErrNoChange        = errors.New("no change of members is under way that could be cancelled")
	ErrMemberExists    = errors.New("there is a member of that name")
	ErrMemberNotFound  = errors.New("there is no such member")
	ErrMemberCount     = fmt.Errorf("a yard has %d to %d members", MinMembers, MaxMembers)
	ErrMemberStep      = errors.New("the member is not where the step begins")
)

// SetMembers tells the ledger once who formed the yard.
type SetMembers struct{ Members []Member }

// ChangeMembers begins a change, if none is under way: Join comes in, Leave goes
// out, both together are a replacement. Cancel instead takes back one that lets
// somebody in who has no vote yet.
type ChangeMembers struct {
	Join   *Member
	Leave  string // the seat's id; "": nobody
	Cancel bool
}

// StepMember says that a change has come one step further.
type StepMember struct {
	ID       string
	From, To MemberState
}

func (*SetMembers) Kind() Kind    { return KindSetMembers }
func (*ChangeMembers) Kind() Kind { return KindChangeMembers }
func (*StepMember) Kind() Kind    { return KindStepMember }

// Roll gives who belongs to the yard.
func (l *Ledger) Roll() Roll { return l.roll }

// enroll replaces the roll by one with this list. Readers may hold the old one.
func (l *Ledger) enroll(members []Member) Result {
	slices.SortFunc(members, func(a, b Member) int { return cmp.Or(strings.Compare(a.Node, b.Node), cmp.Compare(a.Since, b.Since)) })
	l.roll = Roll{l.roll.Revision + 1, members}
	return Result{}
}

func (l *Ledger) setMembers(c *SetMembers) Result {
	if l.roll.Revision > 0 {
		return Result{} // what has changed since is not taken back
	}
	return l.enroll(slices.Clone(c.Members))
}

func (l *Ledger) changeMembers(c *ChangeMembers) Result {
	joining, leaving := l.roll.Changing()
	if c.Cancel {
		if joining == nil {
			return Result{Err: ErrNoChange}
		}
		return l.cancelChange()
	}
	if joining != nil || leaving != nil {
		return Result{Err: fmt.Errorf("%w: %s", ErrMembersChanging, l.roll.Under())}
	}
	members := slices.Clone(l.roll.Members)
	count := len(members)
	if c.Leave != "" {
		i := slices.IndexFunc(members, func(m Member) bool { return m.ID() == c.Leave })
		if i < 0 {
			return Result{Err: fmt.Errorf("%s: %w", c.Leave, ErrMemberNotFound)}
		}
		members[i].State = Leaving
		count--
	}
	if c.Join != nil {
		if slices.ContainsFunc(members, func(m Member) bool { return m.Node == c.Join.Node && m.State == Present }) {
			return Result{Err: fmt.Errorf("%s: %w", c.Join.Node, ErrMemberExists)}
		}
		joiner := *c.Join
		joiner.State, joiner.Since = Joining, l.roll.Revision+1
		members = append(members, joiner)
		count++
	}
	if c.Join == nil && c.Leave == "" {
		return Result{Err: ErrNoChange}
	}
	if count > MaxMembers && c.Join != nil || count < MinMembers && c.Join == nil {
		return Result{Err: fmt.Errorf("%d members after this: %w", count, ErrMemberCount)}
	}
	return l.enroll(members)
}

// cancelChange lets who was coming in go, and who was to go for it stay.
func (l *Ledger) cancelChange() Result {
	members := slices.Clone(l.roll.Members)
	for i := range members {
		switch members[i].State {
		case Joining:
			members[i].State = Leaving
		case Leaving:
			members[i].State = Present
		}
	}
	return l.enroll(members)
}

func (l *Ledger) stepMember(c *StepMember) Result {
	i := slices.IndexFunc(l.roll.Members, func(m Member) bool { return m.ID() == c.ID })
	if i < 0 || l.roll.Members[i].State != c.From {
		return Result{Err: fmt.Errorf("%s, from %s to %s: %w", c.ID, c.From, c.To, ErrMemberStep)}
	}
	members := slices.Clone(l.roll.Members)
	joining, _ := l.roll.Changing()
	switch {
	case c.From == Leaving && joining != nil: // who is replaced goes last
		return Result{Err: fmt.Errorf("%s goes once %s is in: %w", c.ID, joining.ID(), ErrMemberStep)}
	case c.From == Joining && c.To == Present:
		members[i].State = Present
	case c.From == Leaving && c.To == Out:
		members = slices.Delete(members, i, i+1)
	default:
		return Result{Err: fmt.Errorf("%s, from %s to %s: %w", c.ID, c.From, c.To, ErrMemberStep)}
	}
	return l.enroll(members)
}

// Under tells in words which change is under way, "" if none is.
func (r Roll) Under() string {
	joining, leaving := r.Changing()
	switch {
	case joining != nil && leaving != nil:
		return leaving.ID() + " is replaced by " + joining.ID()
	case joining != nil:
		return joining.ID() + " joins"
	case leaving != nil:
		return leaving.ID() + " leaves"
	}
	return ""
}

func (e *encoder) roll(r *Roll) {
	e.uint(r.Revision)
	e.uint(uint64(len(r.Members)))
	for i := range r.Members {
		m := &r.Members[i]
		e.text(m.Node)
		e.text(m.Dir)
		e.text(m.Route)
		e.text(m.Raft)
		e.uint(m.Since)
		e.uint(uint64(m.State))
	}
}

func (d *decoder) roll(r *Roll) {
	r.Revision = d.uint()
	d.times(func() {
		m := Member{Node: d.text(), Dir: d.text(), Route: d.text(), Raft: d.text(), Since: d.uint(), State: MemberState(d.uint())}
		if m.State == Out || m.State > Leaving {
			d.fail(errCorrupt)
		}
		r.Members = append(r.Members, m)
	})
}
