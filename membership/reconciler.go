package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Timing and limits of a change.
const (
	busyInterval        = 300 * time.Millisecond // between steps of a change
	idleInterval        = 5 * time.Second        // between checks without a change
	statusTimeout       = time.Second            // for a node's status
	stepTimeout         = 10 * time.Second       // for one step
	maxJoinLag          = 64                     // entries that a joining member may lack when it gets its vote
	routeTimeout        = 30 * time.Second       // after which a joining member without a route is not admitted
	finishTimeout       = time.Minute            // for a leaving member's jobs
	routeLossTimeout    = 5 * time.Second        // without a route, after which a leaving member counts as dead
	replicaTimeout      = 10 * time.Minute       // for other replicas to become current before a dead member is removed
	evacuateInterval    = 10 * time.Second       // between requests to move a leaving member's replicas
	replicaPollTime     = 700 * time.Millisecond // for replicas that are behind to become current
	replicaPollInterval = 50 * time.Millisecond
	currentGrace        = 10 * time.Second // for which a replica counts as current after it was
)

// Reconciler makes Raft and JetStream agree with the ledger's membership. It
// exists as long as the node, and acts while [Reconciler.Run] runs, that is while
// the node holds the authority.
type Reconciler struct {
	self    string // server ID of this node
	name    string // name of the yard in the configuration
	cluster Cluster
	log     *slog.Logger

	mu          crash.Mutex
	step        string               // description of the pending change's current step
	outcome     string               // why the last change failed
	skew        []string             // where Raft and JetStream differ from the membership
	lastCurrent map[string]time.Time // when each replica was last seen current, by stream and server ID

	replicaWait    time.Duration // replicaPollTime
	routeLossGrace time.Duration // routeLossTimeout

	revision    uint64    // membership revision that the fields below belong to
	startedAt   time.Time // when that revision was first seen
	evacuatedAt time.Time // last request to move replicas
	lastRouted  time.Time // when the leaving member last had a route, or startedAt
}

// newReconciler returns a reconciler for the node with the server ID self in the yard called
// name.
func newReconciler(self, name string, cluster Cluster, log *slog.Logger) *Reconciler {
	return &Reconciler{self: self, name: name, cluster: cluster, log: log, replicaWait: replicaPollTime, routeLossGrace: routeLossTimeout, lastCurrent: make(map[string]time.Time)}
}

// Run reconciles until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	defer r.setStep("", nil)
	for ctx.Err() == nil {
		pause := busyInterval
		stepCtx, cancel := context.WithTimeout(ctx, stepTimeout)
		busy, err := r.reconcile(stepCtx)
		cancel()
		if err != nil && ctx.Err() == nil {
			r.log.Debug("membership change delayed", "err", err)
		}
		if !busy && err == nil {
			pause = idleInterval
		}
		r.sleep(ctx, pause)
	}
}

// sleep blocks for d, or until the membership or ctx changes.
func (r *Reconciler) sleep(ctx context.Context, d time.Duration) {
	revision := r.cluster.Membership().Revision
	for until := time.Now().Add(d); time.Now().Before(until); {
		if backoff.Sleep(ctx, min(busyInterval, time.Until(until))) != nil || r.cluster.Membership().Revision != revision {
			return
		}
	}
}

// reconcile performs the next step of a pending change of the members. If no change is
// pending, it removes the differences of Raft and JetStream from the ledger's membership
// instead. It records the step, or the differences that it found, for View and Reasons.
// busy reports whether a change is pending, so that the next step is due soon.
func (r *Reconciler) reconcile(ctx context.Context) (busy bool, err error) {
	ms := r.cluster.Membership()
	if ms.Revision == 0 {
		return true, r.cluster.Propose(ctx, &ledger.SetMembers{Members: r.cluster.BootstrapMembers()})
	}
	if ms.Revision != r.revision {
		r.revision, r.startedAt, r.evacuatedAt = ms.Revision, time.Now(), time.Time{}
		r.lastRouted = r.startedAt
	}
	joining, leaving := ms.Pending()
	step := ""
	switch {
	case joining != nil:
		step, err = r.join(ctx, joining)
	case leaving != nil:
		step, err = r.leave(ctx, leaving)
	default:
		skew, err := r.syncMembers(ctx, ms)
		r.setStep("", skew)
		return false, err
	}
	if err != nil && step == "" {
		step = err.Error()
	}
	r.setStep(step, nil)
	return true, err
}

// setStep records the current step, "" for none, and the differences that were found. It
// logs the step if it is of another kind than the previous one: the kind is the part
// before a colon.
func (r *Reconciler) setStep(step string, skew []string) {
	r.mu.Lock()
	previous := r.step
	r.step, r.skew = step, skew
	r.mu.Unlock()
	kind, _, _ := strings.Cut(step, ":")
	previousKind, _, _ := strings.Cut(previous, ":")
	if step != "" && kind != previousKind {
		r.log.Info("membership change", "step", step)
	}
}

// Reasons returns where Raft and JetStream differ from the membership, as
// readiness reasons.
func (r *Reconciler) Reasons() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.skew)
}

// join performs the next step of a joining member and returns its description for
// operators. The steps are those in the package comment; a step whose condition is not
// met yet is repeated.
func (r *Reconciler) join(ctx context.Context, j *ledger.Member) (string, error) {
	id := j.ServerID()
	if !slices.Contains(r.cluster.Routed(), id) {
		if time.Since(r.startedAt) > routeTimeout && !r.isServer(id) {
			return "", r.cancelJoin(ctx, fmt.Sprintf("%s was not admitted: it opened no NATS route within %s; check that it runs, has the same cluster.secret, and reaches the members' route addresses", j.Node, duration.Format(routeTimeout)))
		}
		return j.Node + " opens its NATS routes", nil
	}
	status, err := r.nodeStatus(ctx, j.Node)
	if err != nil || status.ID != id {
		return j.Node + " starts", nil
	}
	meta, err := r.metaReplicas(ctx)
	if err != nil {
		return "JetStream elects a leader", nil
	}
	if i := slices.IndexFunc(meta, func(c Replica) bool { return c.ID == id }); i < 0 || !meta[i].healthy() {
		return j.Node + " catches up with JetStream", nil
	}
	if err := r.cluster.AddMember(ctx, id, false); err != nil {
		return "", err
	}
	if last := r.cluster.LastIndex(); status.Applied+maxJoinLag < last {
		return fmt.Sprintf("%s catches up with the log: %d of %d entries", j.Node, status.Applied, last), nil
	}
	// It records on its disk that it is a member before it votes.
	if err := r.cluster.Promote(ctx, j.Node, id); err != nil {
		return "", err
	}
	if err := r.cluster.AddMember(ctx, id, true); err != nil {
		return "", err
	}
	return j.Node + " has a vote", r.cluster.Propose(ctx, &ledger.AdvanceMember{ServerID: id, From: ledger.MemberJoining, To: ledger.MemberPresent})
}

// cancelJoin cancels the pending change and records the reason as its outcome.
func (r *Reconciler) cancelJoin(ctx context.Context, reason string) error {
	r.log.Warn("membership change cancelled", "reason", reason)
	r.setOutcome(reason)
	return r.cluster.Propose(ctx, &ledger.ChangeMembers{Cancel: true})
}

// leave performs the next step of a leaving member and returns its description for
// operators. If the member has had no route for routeLossGrace it counts as dead, and
// the steps that need it are left out.
func (r *Reconciler) leave(ctx context.Context, l *ledger.Member) (string, error) {
	id := l.ServerID()
	if id == r.self {
		return l.Node + " transfers the authority", r.cluster.TransferAuthority(ctx, "")
	}
	alive := slices.Contains(r.cluster.Routed(), id)
	switch {
	case alive:
		r.lastRouted = time.Now()
		if status, err := r.nodeStatus(ctx, l.Node); err == nil && status.ID == id && status.Running > 0 && time.Since(r.startedAt) < finishTimeout {
			return fmt.Sprintf("%s finishes its jobs: %d", l.Node, status.Running), nil
		}
	case time.Since(r.lastRouted) < r.routeLossGrace: // it may reconnect
		return fmt.Sprintf("%s has no route: it is removed as a dead member after %s without one", l.Node, duration.Format(r.routeLossGrace)), nil
	}
	meta, err := r.metaReplicas(ctx)
	if err != nil {
		return "JetStream elects a leader", nil
	}
	inJetStream := hasReplica(meta, id)
	if inJetStream {
		freeReplicas := r.evacuate
		if !alive {
			freeReplicas = r.awaitSpare
		}
		if remaining, err := freeReplicas(ctx, id); remaining != "" || err != nil {
			return remaining, err
		}
	}
	if err := r.cluster.RemoveVoter(ctx, id); err != nil {
		return "", err
	}
	if inJetStream {
		return l.Node + " is removed from JetStream", r.cluster.RemoveServer(ctx, id)
	}
	return r.finishLeave(ctx, l, alive)
}

// finishLeave performs the last steps for member l, which was removed from Raft and
// JetStream. It notifies the member, if it is alive, so that its node stops, and removes
// it from the membership when all streams have their replicas. It returns a description
// of the step for operators. The node is stopped first because a removed JetStream server
// may still answer requests meant for the meta leader.
func (r *Reconciler) finishLeave(ctx context.Context, l *ledger.Member, alive bool) (string, error) {
	id := l.ServerID()
	var notifyErr error
	if alive { // a dead member is notified by the others when it starts again
		notifyErr = r.cluster.NotifyRemoved(ctx, l.Node, id)
	}
	if missing, err := r.missingReplicas(ctx, id); missing != "" || err != nil {
		return missing, err
	}
	if notifyErr != nil {
		r.log.Info("removed member not notified", "node", l.Node, "err", notifyErr)
	}
	return l.Node + " is removed", r.cluster.Propose(ctx, &ledger.AdvanceMember{ServerID: id, From: ledger.MemberLeaving, To: ledger.MemberOut})
}

// nodeStatus requests a node's status, with statusTimeout.
func (r *Reconciler) nodeStatus(ctx context.Context, node string) (NodeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return r.cluster.NodeStatus(ctx, node)
}

// nodeStatuses requests the status of all members at once, and returns those that
// answered by server ID.
func (r *Reconciler) nodeStatuses(ctx context.Context, ms ledger.Membership) map[string]NodeStatus {
	var mu sync.Mutex
	var group sync.WaitGroup
	statuses := map[string]NodeStatus{}
	for i := range ms.Members {
		node := ms.Members[i].Node
		group.Go(func() {
			if s, err := r.nodeStatus(ctx, node); err == nil {
				mu.Lock()
				statuses[s.ID] = s
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return statuses
}

// metaReplicas returns the servers of JetStream's meta group, as its leader reports
// them. It fails if no member that answers leads the group.
func (r *Reconciler) metaReplicas(ctx context.Context) ([]Replica, error) {
	meta, known := reportedMeta(r.nodeStatuses(ctx, r.cluster.Membership()))
	if !known {
		return nil, errors.New("no member reports that it leads JetStream")
	}
	return meta, nil
}

// reportedMeta returns the servers of JetStream's meta group from the status of the node
// that leads it. known is false if none of the nodes leads it.
func reportedMeta(statuses map[string]NodeStatus) (meta []Replica, known bool) {
	for _, s := range statuses {
		if s.Led {
			return s.Meta, true
		}
	}
	return nil, false
}

// isServer reports whether the Raft group has a server with this ID.
func (r *Reconciler) isServer(id string) bool {
	return slices.ContainsFunc(r.cluster.Servers(), func(s consensus.MemberInfo) bool { return s.ID == id })
}

// syncMembers adjusts Raft and JetStream to a membership without a pending change.
// skew lists the differences that it found, as readiness reasons. err is the last error
// of an adjustment; the next call repeats what failed.
func (r *Reconciler) syncMembers(ctx context.Context, ms ledger.Membership) (skew []string, err error) {
	isMember := func(id string) bool {
		return slices.ContainsFunc(ms.Members, func(m ledger.Member) bool { return m.ServerID() == id })
	}
	report := func(format string, args ...any) {
		skew = append(skew, "members are out of step: "+fmt.Sprintf(format, args...)+": this resolves itself; if it stays, see docs/guides/operate.md")
	}
	servers := r.cluster.Servers()
	for _, s := range servers {
		if !isMember(s.ID) {
			report("%s votes and is no member", s.ID)
			err = r.cluster.RemoveVoter(ctx, s.ID)
		}
	}
	for i := range ms.Members {
		id := ms.Members[i].ServerID()
		if !slices.ContainsFunc(servers, func(s consensus.MemberInfo) bool { return s.ID == id && s.Voter }) {
			report("%s is a member without a vote", id)
			err = r.cluster.AddMember(ctx, id, true)
		}
	}
	meta, metaErr := r.metaReplicas(ctx)
	if metaErr != nil {
		return skew, err // readiness reports errors of JetStream itself
	}
	for i := range meta {
		if id := meta[i].ID; !isMember(id) {
			report("JetStream counts on %s, which is no member", id)
			err = r.cluster.RemoveServer(ctx, id)
		}
	}
	for i := range ms.Members {
		if id := ms.Members[i].ServerID(); !hasReplica(meta, id) {
			report("JetStream does not know member %s", id) // it joins JetStream by its route
		}
	}
	return skew, err
}
