package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Requests of a transfer of the authority: verbTransfer asks the Raft leader to start
// one, verbFollowerStatus asks the member that is to take over how far it lags.
const (
	verbTransfer       = "transfer"
	verbFollowerStatus = "follower_status"
)

// handleExec carries out a command of the runtime contract.
func (n *Node) handleExec(ctx context.Context, r *cluster.Request) ([]byte, error) {
	event, index, err := n.proposer.exec(ctx, r.Data)
	r.SetIndex(index)
	return event, err
}

// handleExecCommand is handleExec for a subject that names the command, so that a role
// can be limited to some commands. It rejects any other command.
func (n *Node) handleExecCommand(ctx context.Context, r *cluster.Request) ([]byte, error) {
	command, err := ledger.ParseCommand(r.Data)
	if err != nil {
		return nil, &cluster.APIError{Code: "400", Text: err.Error()}
	}
	if tag := ledger.CommandTag(command); tag != r.Token() {
		return nil, &cluster.APIError{Code: "400", Text: fmt.Sprintf("the subject names the command %s, the request %s", r.Token(), tag)}
	}
	return n.handleExec(ctx, r)
}

// exec carries out one command of the runtime contract and returns the event that
// answers it, with the index of its entry. The ledger's errors keep the texts of the
// contract.
func (p *proposer) exec(ctx context.Context, text []byte) (event []byte, index uint64, err error) {
	command, err := ledger.ParseCommand(text)
	if err == nil {
		err = ledger.Check(command)
	}
	if err != nil {
		return nil, 0, &cluster.APIError{Code: "400", Text: err.Error()}
	}
	if a, ok := command.(*ledger.AcquireAuthority); ok && p.isMember(a.Owner) {
		return p.transferAuthority(ctx, a)
	}
	d, err := p.propose(ctx, command)
	return d.Event, d.Index, contractError(err)
}

// contractError adds the error code to an error of the ledger and keeps its text.
func contractError(err error) error {
	var rejected *remoteError
	switch {
	case errors.Is(err, ledger.ErrBacklogFull):
		return &cluster.APIError{Code: "503", Text: err.Error(), RetryAfter: time.Second}
	case errors.As(err, &rejected):
		return &cluster.APIError{Code: "409", Text: rejected.text}
	}
	return err
}

func (p *proposer) isMember(name string) bool {
	for _, m := range p.raft.Status().Members {
		if m.Name == name {
			return true
		}
	}
	return false
}

// transferAuthority transfers the authority to a member and returns the event of its
// acquisition. It first proposes the command itself: if a owns the authority already
// the ledger answers with its lease, and otherwise rejects the command. The committed
// rejection proves that this node is not cut off and its view not outdated.
func (p *proposer) transferAuthority(ctx context.Context, a *ledger.AcquireAuthority) (event []byte, index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	d, err := p.propose(ctx, a)
	var rejected *remoteError
	if !errors.As(err, &rejected) {
		return d.Event, d.Index, err
	}
	if err := p.raft.WaitApplied(ctx, d.Index); err != nil {
		return nil, 0, &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	}
	transferErr := p.requestTransfer(ctx, a.Owner)
	for {
		_, changed := p.raft.Applied()
		var lease ledger.Authority
		p.raft.View(func(l *ledger.Ledger) { lease, index = l.Authority(), l.Index() })
		if lease.Owner == a.Owner {
			acquired := ledger.Event{
				Kind: ledger.AuthorityAcquired, A: lease.Owner, B: lease.LeaseID, Extra: &ledger.Extra{C: ledger.FormatTime(lease.Until)},
			}
			return acquired.JSON(), index, nil // perhaps at the request of another client
		}
		if transferErr != nil {
			return nil, 0, transferRefused(rejected, a.Owner, transferErr)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, transferRefused(rejected, a.Owner, errors.New("it has not acquired the authority in time"))
		}
	}
}

// transferRefused returns the contract's error with the reason why the member cannot
// take over now.
func transferRefused(rejected error, member string, reason error) error {
	return &cluster.APIError{
		Code: "503", Text: fmt.Sprintf("%s; member %s cannot take it over: %s", rejected, member, peerErrorText(reason)), RetryAfter: time.Second,
	}
}

// peerErrorText returns err for a user, without the internals of the request.
func peerErrorText(err error) string {
	var api *cluster.APIError
	switch {
	case errors.As(err, &api):
		return api.Text
	case errors.Is(err, cluster.ErrNodeUnreachable), errors.Is(err, cluster.ErrNoAnswer), errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	}
	return err.Error()
}

// requestTransfer asks the Raft leader to transfer the authority.
func (p *proposer) requestTransfer(ctx context.Context, to string) error {
	leader := p.raft.Status().Leader
	switch leader {
	case p.node:
		return p.transfer(ctx, to)
	case "":
		return errors.New("no Raft leader is known that could transfer it")
	}
	_, err := p.fleet.Request(ctx, leader, verbTransfer, []byte(to))
	return err
}

// serveTransfer transfers the authority at another node's request.
func (p *proposer) serveTransfer(ctx context.Context, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if err := p.transfer(ctx, string(payload)); err != nil {
		return nil, &cluster.APIError{Code: "503", Text: peerErrorText(err)}
	}
	return nil, nil
}

// Conditions of a transfer. Raft accepts no proposals while a transfer is under way,
// so one that cannot succeed would end the present tenure in vain.
const (
	followerTimeout = 400 * time.Millisecond // for the member's answer
	maxContactAge   = 500 * time.Millisecond // since its last contact with the leader
	maxFollowerLag  = 128                    // entries behind the leader
)

// followerStatus reports how closely a member follows the Raft leader.
type followerStatus struct {
	Leader  string        `json:"leader"`
	Contact time.Duration `json:"contact"` // since the last message of the leader, in nanoseconds; -1: never
	Last    uint64        `json:"last"`
	Leaving bool          `json:"leaving"` // it is stopping or drained
}

// transfer transfers the Raft leadership to a member that can take it at once. It asks
// the member itself: a tenure that has just begun has received no heartbeats yet and
// would consider all members down.
func (p *proposer) transfer(ctx context.Context, to string) error {
	reqCtx, cancel := context.WithTimeout(ctx, followerTimeout)
	defer cancel()
	last := p.raft.Status().Last
	raw, err := p.fleet.Request(reqCtx, to, verbFollowerStatus, nil)
	if err != nil {
		return err
	}
	var f followerStatus
	if err := json.Unmarshal(raw, &f); err != nil {
		return err
	}
	switch {
	case f.Leaving:
		return errors.New("it is about to stop, or drained")
	case f.Leader != p.node, f.Contact < 0, f.Contact > maxContactAge:
		return errors.New("it is not in contact with the Raft leader, " + p.node)
	case f.Last+maxFollowerLag < last:
		return fmt.Errorf("it is not caught up: its log ends at %d, the leader's at %d", f.Last, last)
	}
	return p.raft.Transfer(ctx, to)
}

func (p *proposer) serveFollowerStatus(context.Context, []byte) ([]byte, error) {
	s := p.raft.Status()
	return json.Marshal(followerStatus{s.Leader, s.Contact, s.Last, p.leaving.Load()})
}
