package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// The verbs of a hand-over: verbTransfer asks the Raft leader to begin one,
// verbFollow asks the member that is to take over how closely it follows.
const (
	verbTransfer = "transfer"
	verbFollow   = "follow"
)

func (n *Node) handleExec(ctx context.Context, r *cluster.Request) ([]byte, error) {
	event, index, err := n.commander.exec(ctx, r.Data)
	r.Shows(index)
	return event, err
}

// handleExecCommand carries out a command that the subject names, too, so that a
// role can be held to some of them: a question of another one is refused.
func (n *Node) handleExecCommand(ctx context.Context, r *cluster.Request) ([]byte, error) {
	asked, err := ledger.ParseCommand(r.Data)
	if err != nil {
		return nil, &cluster.APIError{Code: "400", Text: err.Error()}
	}
	if is := ledger.CommandTag(asked); is != r.Token() {
		return nil, &cluster.APIError{Code: "400", Text: fmt.Sprintf("the subject names the command %s, the question %s", r.Token(), is)}
	}
	return n.handleExec(ctx, r)
}

// exec carries out one command of the runtime contract and gives the event
// that answers it, with the index of the entry that says so. Refusals are the
// contract's own texts.
func (c *commander) exec(ctx context.Context, text []byte) (event []byte, index uint64, err error) {
	command, err := ledger.ParseCommand(text)
	if err == nil {
		err = ledger.Check(command)
	}
	if err != nil {
		return nil, 0, &cluster.APIError{Code: "400", Text: err.Error()}
	}
	if a, ok := command.(*ledger.AcquireAuthority); ok && c.isMember(a.Owner) {
		return c.handOver(ctx, a)
	}
	d, err := c.do(ctx, command)
	return d.Event, d.Index, contractRefusal(err)
}

// contractRefusal gives what the ledger refuses its code, and its text as it is.
func contractRefusal(err error) error {
	var refused *refusedError
	switch {
	case errors.Is(err, ledger.ErrBacklogFull):
		return &cluster.APIError{Code: "503", Text: err.Error(), RetryAfter: time.Second}
	case errors.As(err, &refused):
		return &cluster.APIError{Code: "409", Text: refused.text}
	}
	return err
}

func (c *commander) isMember(name string) bool {
	for _, m := range c.raft.Status().Members {
		if m.Name == name {
			return true
		}
	}
	return false
}

// handOver moves the authority to a member and answers with the acquisition of
// its new tenure. The command itself goes first: the member that holds the
// authority already is answered with the lease as it stands, and whoever is not
// is refused by a commit, so that a node which was cut off claims nothing.
func (c *commander) handOver(ctx context.Context, a *ledger.AcquireAuthority) (event []byte, index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	d, err := c.do(ctx, a)
	var refused *refusedError
	if !errors.As(err, &refused) {
		return d.Event, d.Index, err
	}
	if err := c.raft.WaitApplied(ctx, d.Index); err != nil {
		return nil, 0, &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	}
	stuck := c.askTransfer(ctx, a.Owner)
	for {
		_, changed := c.raft.Applied()
		var lease ledger.Authority
		c.raft.View(func(l *ledger.Ledger) { lease, index = l.Authority(), l.Index() })
		if lease.Owner == a.Owner {
			acquired := ledger.Event{
				Kind: ledger.AuthorityAcquired, A: lease.Owner, B: lease.LeaseID, Extra: &ledger.Extra{C: ledger.FormatTime(lease.Until)},
			}
			return acquired.JSON(), index, nil // perhaps because somebody else had asked
		}
		if stuck != nil {
			return nil, 0, stays(refused, a.Owner, stuck)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, stays(refused, a.Owner, errors.New("it has not acquired the authority in time"))
		}
	}
}

// stays is the contract's refusal with the reason why a member, who might have
// the authority for the asking, does not get it now.
func stays(refused error, to string, why error) error {
	return &cluster.APIError{
		Code: "503", Text: fmt.Sprintf("%s; member %s cannot take it over: %s", refused, to, plainReason(why)), RetryAfter: time.Second,
	}
}

// plainReason is a reason without the names of the messages that carried it.
func plainReason(err error) string {
	var api *cluster.APIError
	switch {
	case errors.As(err, &api):
		return api.Text
	case errors.Is(err, cluster.ErrNoNode), errors.Is(err, cluster.ErrNoAnswer), errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	}
	return err.Error()
}

func (c *commander) askTransfer(ctx context.Context, to string) error {
	leader := c.raft.Status().Leader
	switch leader {
	case c.node:
		return c.transfer(ctx, to)
	case "":
		return errors.New("no Raft leader is known who could hand it over")
	}
	_, err := c.fleet.Request(ctx, leader, verbTransfer, []byte(to))
	return err
}

// serveTransfer hands the authority over at another node's request.
func (c *commander) serveTransfer(ctx context.Context, payload []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	if err := c.transfer(ctx, string(payload)); err != nil {
		return nil, &cluster.APIError{Code: "503", Text: plainReason(err)}
	}
	return nil, nil
}

// What a member must be like for the authority to be handed to it. Raft takes
// no proposals while a transfer waits, which would end the present tenure for
// nothing.
const (
	followAnswer = 400 * time.Millisecond
	followFresh  = 500 * time.Millisecond // since it heard the leader
	followLag    = 128                    // entries that it lacks
)

// following is how closely a member follows the Raft leader.
type following struct {
	Leader  string        `json:"leader"`
	Contact time.Duration `json:"contact"` // since the leader was heard, in nanoseconds; -1: never
	Last    uint64        `json:"last"`
	Leaving bool          `json:"leaving"` // it is about to stop, or drained
}

// transfer hands Raft's leadership to a member that can take it at once. Only
// its own answer tells whether it can: a tenure that has just begun has heard
// nobody's beat yet, and would count all as down.
func (c *commander) transfer(ctx context.Context, to string) error {
	asking, cancel := context.WithTimeout(ctx, followAnswer)
	defer cancel()
	last := c.raft.Status().Last
	raw, err := c.fleet.Request(asking, to, verbFollow, nil)
	if err != nil {
		return err
	}
	var f following
	if err := json.Unmarshal(raw, &f); err != nil {
		return err
	}
	switch {
	case f.Leaving:
		return errors.New("it is about to stop, or drained")
	case f.Leader != c.node, f.Contact < 0, f.Contact > followFresh:
		return errors.New("it does not hear the Raft leader, " + c.node)
	case f.Last+followLag < last:
		return fmt.Errorf("it is not caught up: its log ends at %d, the leader's at %d", f.Last, last)
	}
	return c.raft.Transfer(ctx, to)
}

func (c *commander) serveFollow(context.Context, []byte) ([]byte, error) {
	s := c.raft.Status()
	return json.Marshal(following{s.Leader, s.Contact, s.Last, c.leaving.Load()})
}
