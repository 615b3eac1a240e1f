package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Requests of a transfer of the authority: verbTransfer asks the Raft leader to start
// one, verbFollowerStatus asks the member that is to take over how far it lags.
const (
	verbTransfer       = "transfer"
	verbFollowerStatus = "follower_status"
)

// requestTimeout is how long a caller waits for a transfer.
const requestTimeout = 2 * time.Second

// Conditions of a transfer. Raft accepts no proposals while a transfer is under way,
// so one that cannot succeed would end the present tenure in vain.
const (
	followerTimeout = 400 * time.Millisecond // for the member's answer
	maxContactAge   = 500 * time.Millisecond // since its last contact with the leader
	maxFollowerLag  = 128                    // entries behind the leader
)

// Transferer transfers the authority to other members. All fields are required.
type Transferer struct {
	Node  string // this member's name
	Raft  *consensus.Node
	Fleet *cluster.Fleet
	// Propose commits a command on the authority.
	Propose func(context.Context, ledger.Command) (Proposed, error)
	// RecordAct records that the actor of ctx did something: action is the verb, as in
	// "node.drain", target what it is about.
	RecordAct func(ctx context.Context, action, target string)
	// Owner returns the name of the member that holds the authority, or "".
	Owner func() string
	// Leaving is set while the node is stopping or drained, and must not become the
	// authority.
	Leaving *atomic.Bool
}

// Proposed is the answer to a command that was committed.
type Proposed struct {
	Index    uint64
	Event    []byte
	Rejected error // why the ledger rejected the command, or nil
}

// Handlers returns the handlers of messages from other nodes, by verb.
func (t *Transferer) Handlers() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		verbTransfer: t.serveTransfer, verbFollowerStatus: t.serveFollowerStatus,
	}
}

// HandleTransfer transfers the authority to the member that the request names, or to
// the first that accepts it, on whichever node the request arrives.
func (t *Transferer) HandleTransfer(ctx context.Context, q *api.MemberRequest) (*api.Transfer, error) {
	if owner := t.Owner(); q.To != "" && q.To == owner {
		return nil, &api.Error{Code: api.CodeConflict, Text: owner + " holds the authority already"}
	}
	return t.recorded(ctx, q.To)
}

// HandleStepdown transfers the authority from this node to the first other member that
// accepts it.
func (t *Transferer) HandleStepdown(ctx context.Context) (*api.Transfer, error) {
	if owner := t.Owner(); owner != t.Node {
		return nil, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("%s does not hold the authority; ask %s, which does", t.Node, owner)}
	}
	return t.recorded(ctx, "")
}

// recorded is transferTo for a request, whose success is recorded as an act.
func (t *Transferer) recorded(ctx context.Context, to string) (*api.Transfer, error) {
	v, err := t.transferTo(ctx, to)
	if err == nil {
		t.RecordAct(ctx, "cluster.transfer", v.From+" to "+v.To)
	}
	return v, err
}

// transferTo transfers the authority to the member to, or to the first other member
// that accepts it if to is "".
func (t *Transferer) transferTo(ctx context.Context, to string) (*api.Transfer, error) {
	from := t.Owner()
	candidates := []string{to}
	if to == "" {
		candidates = othersPresent(t.Raft, from)
	} else if !t.IsMember(to) {
		return nil, &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("there is no member %q to take the authority", to)}
	}
	var lastErr error = &api.Error{Code: api.CodeConflict, Text: "there is no other member to hand the authority to"}
	for _, name := range candidates {
		if _, _, err := t.Acquire(ctx, &ledger.AcquireAuthority{Owner: name}); err != nil {
			lastErr = err
			continue
		}
		var epoch uint64
		t.Raft.View(func(l *ledger.Ledger) { epoch = l.Authority().Epoch })
		return &api.Transfer{From: from, To: name, Epoch: epoch}, nil
	}
	return nil, lastErr
}

// presentNodes returns the names of all present members.
func presentNodes(raft *consensus.Node) (names []string) {
	raft.View(func(l *ledger.Ledger) { names = l.Membership().PresentNodes() })
	return names
}

// othersPresent returns the names of all present members but one.
func othersPresent(raft *consensus.Node, except string) []string {
	return slices.DeleteFunc(presentNodes(raft), func(name string) bool { return name == except })
}

// IsMember reports whether the Raft group has a server of a member with this name.
func (t *Transferer) IsMember(name string) bool {
	return slices.ContainsFunc(t.Raft.Status().Members, func(m consensus.MemberInfo) bool { return m.Name == name })
}

// Acquire transfers the authority to the member a.Owner and returns the event of its
// acquisition, with the index of its entry. It first proposes the command itself: if
// a.Owner holds the authority already the ledger answers with its lease, and otherwise
// rejects the command. The committed rejection proves that this node is not cut off and
// its view not outdated. Once a.Owner has the lease, Acquire proposes the command again,
// because only then can the ledger give the lease the id a.LeaseID.
func (t *Transferer) Acquire(ctx context.Context, a *ledger.AcquireAuthority) (event []byte, index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	proposed, err := t.Propose(ctx, a)
	if err != nil || proposed.Rejected == nil {
		return proposed.Event, proposed.Index, err
	}
	if err := t.Raft.WaitApplied(ctx, proposed.Index); err != nil {
		return nil, 0, &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	}
	transferErr := t.requestTransfer(ctx, a.Owner)
	for {
		_, changed := t.Raft.Applied()
		var lease ledger.Authority
		t.Raft.View(func(l *ledger.Ledger) { lease, index = l.Authority(), l.Index() })
		if lease.Owner == a.Owner {
			if a.LeaseID != "" {
				if named, err := t.Propose(ctx, a); err == nil && named.Rejected == nil {
					return named.Event, named.Index, nil
				}
			}
			acquired := ledger.Event{
				Kind: ledger.AuthorityAcquired, A: lease.Owner, B: lease.LeaseID, Extra: &ledger.Extra{C: ledger.FormatTime(lease.Until)},
			}
			return acquired.JSON(), index, nil // perhaps at the request of another client
		}
		if transferErr != nil {
			return nil, 0, transferRefused(proposed.Rejected, a.Owner, transferErr)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, transferRefused(proposed.Rejected, a.Owner, errors.New("it has not acquired the authority in time"))
		}
	}
}

// transferRefused returns the error of a transfer: rejected, which is the runtime
// contract's, with the reason why the member cannot take over now.
func transferRefused(rejected error, member string, reason error) error {
	return &api.Error{
		Code: api.CodeUnavailable, Text: fmt.Sprintf("%s; member %s cannot take it over: %s", rejected, member, peerErrorText(reason)), RetryAfter: time.Second,
	}
}

// peerErrorText returns err for a user, without the internals of the request.
func peerErrorText(err error) string {
	refused, isRefused := errors.AsType[*api.Error](err)
	switch {
	case isRefused:
		return refused.Text
	case errors.Is(err, cluster.ErrNodeUnreachable), errors.Is(err, cluster.ErrNoAnswer), errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	}
	return err.Error()
}

// requestTransfer asks the Raft leader, which may be this node, to transfer its leadership
// to a member. The authority follows it.
func (t *Transferer) requestTransfer(ctx context.Context, to string) error {
	leader := t.Raft.Status().Leader
	switch leader {
	case t.Node:
		return t.transferLeadership(ctx, to)
	case "":
		return errors.New("no Raft leader is known that could transfer it")
	}
	_, err := t.Fleet.Request(ctx, leader, verbTransfer, []byte(to))
	return err
}

// serveTransfer serves requestTransfer of another node.
func (t *Transferer) serveTransfer(ctx context.Context, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := t.transferLeadership(ctx, string(payload)); err != nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Text: peerErrorText(err)}
	}
	return nil, nil
}

// followerStatus reports how closely a member follows the Raft leader.
type followerStatus struct {
	Leader  string        `json:"leader"`
	Contact time.Duration `json:"contact"` // since the last message of the leader, in nanoseconds; -1: never
	Last    uint64        `json:"last"`
	Leaving bool          `json:"leaving"` // it is stopping or drained
}

// transferLeadership transfers the Raft leadership to a member that can take it at
// once. It asks the member itself: a tenure that has just begun has received no
// heartbeats yet and would consider all members down.
func (t *Transferer) transferLeadership(ctx context.Context, to string) error {
	statusCtx, cancel := context.WithTimeout(ctx, followerTimeout)
	defer cancel()
	last := t.Raft.Status().Last
	follower, err := t.followerStatus(statusCtx, to)
	if err != nil {
		return err
	}
	switch {
	case follower.Leaving:
		return errors.New("it is about to stop, or drained")
	case follower.Leader != t.Node, follower.Contact < 0, follower.Contact > maxContactAge:
		return errors.New("it is not in contact with the Raft leader, " + t.Node)
	case follower.Last+maxFollowerLag < last:
		return fmt.Errorf("it is not caught up: its log ends at %d, the leader's at %d", follower.Last, last)
	}
	return t.Raft.Transfer(ctx, to)
}

// followerStatus asks a member for its status as a follower.
func (t *Transferer) followerStatus(ctx context.Context, member string) (f followerStatus, err error) {
	raw, err := t.Fleet.Request(ctx, member, verbFollowerStatus, nil)
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	return f, err
}

// serveFollowerStatus returns this node's own status as a follower.
func (t *Transferer) serveFollowerStatus(context.Context, []byte) ([]byte, error) {
	s := t.Raft.Status()
	return json.Marshal(followerStatus{s.Leader, s.Contact, s.Last, t.Leaving.Load()})
}
