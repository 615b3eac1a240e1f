package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/ledger"
	"yardmaster/vigil"
)

// How this node is, for its keeper: bound to what the rooms know.

// newKeeper makes the keeper. The ballast is laid before anything else needs the
// room.
func (n *Node) newKeeper() *vigil.Keeper {
	cut := &cutWatch{}
	return vigil.New(vigil.Config{
		Node: n.cfg.Node.Name, Members: n.memberNames, Disk: n.cfg.disk(),
		Check: func(ctx context.Context) vigil.Word { return n.check(ctx, cut, time.Now()) },
		Ask: func(member string) (w vigil.Word, err error) {
			raw, err := n.raft.Hear(member)
			if err == nil {
				err = json.Unmarshal(raw, &w)
			}
			return w, err
		},
		Say: func(w vigil.Word) {
			if raw, err := json.Marshal(w); err == nil { // plain fields: it does not fail
				n.raft.Say(raw)
			}
		},
		Leads: func() bool {
			owner, _, _ := n.watch.authority()
			return owner == n.cfg.Node.Name && n.raft.Status().Leader == owner
		},
		HandOver: n.raft.Transfer,
		Close:    n.messages.Shut,
	}, n.log)
}

// layBallast makes the ballast; a node goes on without.
func (n *Node) layBallast() {
	disk := n.cfg.disk()
	bytes, err := disk.Ballast(n.cfg.Disk.BallastBytes)
	switch {
	case err != nil:
		n.log.Warn("no ballast is laid", "error", err)
	case bytes == 0 && n.cfg.Disk.BallastBytes != vigil.NoBallast:
		n.log.Info("no ballast is laid: the disk has not the room, or is none")
	}
}

// memberNames are those who have a voice now; this node's if nobody has yet.
func (n *Node) memberNames() (names []string) {
	for _, m := range n.raft.Status().Members {
		if m.Voter {
			names = append(names, m.Name)
		}
	}
	if len(names) == 0 {
		return n.cfg.members()
	}
	return names
}

// poor tells that a member should lead no lane: its disk is low, or it is about
// to stop, or drained.
func (n *Node) poor(member string) bool {
	leaving := func(w vigil.Word) bool { return w.Node == member && w.Leaving }
	return slices.Contains(n.keeper.Poor(vigil.Low), member) || slices.ContainsFunc(n.keeper.Others(), leaving)
}

// check looks at what may be wrong with this node.
func (n *Node) check(ctx context.Context, cut *cutWatch, now time.Time) vigil.Word {
	raft := n.raft.Status()
	w := vigil.Word{
		Reaches: n.messages.Reachable(), Leader: raft.Leader, Contact: raft.Contact, Last: raft.Last, Leaving: n.commander.leaving.Load(),
		Drained: n.drain.Since(),
	}
	ails := func(kind vigil.Kind, format string, args ...any) {
		w.Ailments = append(w.Ailments, vigil.Ailment{Kind: kind, Text: fmt.Sprintf(format, args...)})
	}
	if err := n.raft.WriteError(); err != nil {
		ails(vigil.DiskFails, "the log cannot be written: %v; free space, or mend the disk", err)
	}
	if why := n.messages.Frozen(); why != "" {
		ails(vigil.JetStream, "%s", why)
	} else if err := n.messages.Health(ctx); err != nil && n.cfg.Clustered() {
		ails(vigil.JetStream, "%v", err)
	}
	members := n.memberNames()
	if len(w.Reaches) <= len(members)/2 && raft.Leader != "" {
		missing := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return slices.Contains(w.Reaches, m) })
		ails(vigil.Routes, "it hears the yard agree, and has no NATS route to %s: mend the network between their route addresses", strings.Join(missing, ", "))
	}
	made := false
	n.raft.View(func(l *ledger.Ledger) { made = l.StreamsMade() })
	if made && n.cfg.Clustered() && n.messages.Answering() == 0 {
		ails(vigil.NoLane, "no lane answers it")
	}
	unopened, err := n.messages.Unopened()
	if err != nil {
		n.log.Debug("which copies are not open is not known", "error", err) // JetStream does not work, which is said above
	}
	w.Ailments = append(w.Ailments, n.copyAilments(unopened)...)
	isUnopened := func(stream string) bool { return slices.Contains(unopened, stream) }
	if behind := slices.DeleteFunc(n.messages.Standstill(), isUnopened); len(behind) > 0 {
		ails(vigil.Standstill, "its copy of %s lags behind the leader's and has not come nearer for 20 s: stop no other member until it has; if it stays, run 'yardmaster cluster members', restart this node, and replace it if that does not help", strings.Join(behind, ", "))
	}
	owner, _, _ := n.watch.authority()
	if cut.lasts(now, owner, w.Reaches, raft.Contact) && len(w.Reaches) > len(members)/2 {
		ails(vigil.PartialCut, "partial partition: it has no NATS route to the authority, %s, which others have: mend the network between these two", owner)
	}
	return w
}

// cutFor is how long the authority may be out of reach before it is said.
const cutFor = 10 * time.Second

// cutWatch notes since when this node hears of an authority that it does not
// reach over NATS.
type cutWatch struct {
	from  string
	since time.Time
}

func (c *cutWatch) lasts(now time.Time, owner string, reaches []string, contact time.Duration) bool {
	if owner == "" || contact < 0 || contact > cutFor || slices.Contains(reaches, owner) {
		c.from = ""
		return false
	}
	if c.from != owner {
		c.from, c.since = owner, now
	}
	return now.Sub(c.since) >= cutFor
}
