package membership

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// fakeCluster is a cluster of three members that agree; tests change its lists.
type fakeCluster struct {
	l        *ledger.Ledger
	at       ledger.Stamp
	servers  []consensus.MemberInfo
	meta     []Replica
	streams  []StreamReplicas
	statuses map[string]NodeStatus // by node
	routed   []string
	joining  consensus.WaitingNode
	probeErr error
	calls    []string

	streamsErr error // of Streams
}

func newFakeCluster(t *testing.T) (*fakeCluster, *Reconciler) {
	t.Helper()
	f := &fakeCluster{l: ledger.New(), at: ledger.Stamp{Term: 1, At: time.Unix(1000, 0)}, statuses: map[string]NodeStatus{}}
	f.at.Index++
	f.l.Apply(f.at, []ledger.Command{&ledger.Lead{Owner: "n1", Until: f.at.At.Add(time.Hour)}})
	f.at.Epoch = f.l.Authority().Epoch
	lane := StreamReplicas{Stream: "YARD_JOBS_0", Want: 3}
	for i, m := range f.BootstrapMembers() {
		f.servers = append(f.servers, consensus.MemberInfo{ID: m.ServerID(), Voter: true})
		f.meta = append(f.meta, Replica{ID: m.ServerID(), Leader: i == 0, Current: true})
		f.routed = append(f.routed, m.ServerID())
		f.statuses[m.Node] = NodeStatus{ID: m.ServerID()}
		lane.Replicas = append(lane.Replicas, Replica{ID: m.ServerID(), Leader: i == 0, Current: true})
	}
	f.streams = []StreamReplicas{lane}
	r := newReconciler("n1-0000000a", "yard", f, slog.New(slog.DiscardHandler))
	r.replicaWait, r.routeLossGrace = 0, 0
	if _, err := r.reconcile(t.Context()); err != nil || f.Membership().Revision != 1 {
		t.Fatalf("the membership was not committed: %v", err)
	}
	return f, r
}

func (f *fakeCluster) BootstrapMembers() (all []ledger.Member) {
	for _, name := range []string{"n1", "n2", "n3"} {
		all = append(all, ledger.Member{Node: name, Dir: "0000000a", Route: "h:1", Raft: "h:2", State: ledger.MemberPresent})
	}
	return all
}

func (f *fakeCluster) Membership() ledger.Membership { return f.l.Membership() }
func (f *fakeCluster) Propose(_ context.Context, c ledger.Command) error {
	f.at.Index++
	return f.l.Apply(f.at, []ledger.Command{c})[0].Err
}
func (f *fakeCluster) Servers() []consensus.MemberInfo { return f.servers }
func (f *fakeCluster) LastIndex() uint64               { return 1000 }
func (f *fakeCluster) AddMember(_ context.Context, id string, vote bool) error {
	f.servers = slices.DeleteFunc(f.servers, func(s consensus.MemberInfo) bool { return s.ID == id })
	f.servers = append(f.servers, consensus.MemberInfo{ID: id, Voter: vote})
	return nil
}
func (f *fakeCluster) RemoveVoter(_ context.Context, id string) error {
	f.servers = slices.DeleteFunc(f.servers, func(s consensus.MemberInfo) bool { return s.ID == id })
	return nil
}
func (f *fakeCluster) Probe(string) (consensus.WaitingNode, error) { return f.joining, f.probeErr }
func (f *fakeCluster) Routed() []string                            { return f.routed }
func (f *fakeCluster) Streams(context.Context) (all []StreamReplicas, err error) {
	for _, s := range f.streams {
		s.Replicas = slices.Clone(s.Replicas)
		all = append(all, s)
	}
	return all, f.streamsErr
}
func (f *fakeCluster) Evacuate(_ context.Context, id string) error {
	f.calls = append(f.calls, "evacuate "+id)
	return nil
}
func (f *fakeCluster) Promote(_ context.Context, _, id string) error {
	f.calls = append(f.calls, "promote "+id)
	return nil
}
func (f *fakeCluster) NotifyRemoved(_ context.Context, _, id string) error {
	f.calls = append(f.calls, "notify "+id)
	return nil
}
func (f *fakeCluster) TransferAuthority(context.Context, string) error {
	f.calls = append(f.calls, "transfer")
	return nil
}
func (f *fakeCluster) RemoveServer(_ context.Context, id string) error {
	f.meta = slices.DeleteFunc(f.meta, func(c Replica) bool { return c.ID == id })
	return nil
}
func (f *fakeCluster) NodeStatus(_ context.Context, node string) (NodeStatus, error) {
	w, ok := f.statuses[node]
	if !ok {
		return w, errors.New("no answer")
	}
	if w.Applied == 0 {
		w.Applied = 1000
	}
	if node == "n1" {
		w.Meta, w.Led = f.meta, true
	}
	return w, nil
}

// waitingNode returns a node that waits to join. yardID is empty if its directory is.
func waitingNode(node, dir, yard, yardID string) consensus.WaitingNode {
	return consensus.WaitingNode{MemberID: consensus.MemberID{Node: node, Dir: dir}, Yard: yard, YardID: yardID}
}

// reconcileOnce reconciles once and returns the current step.
func (f *fakeCluster) reconcileOnce(t *testing.T, r *Reconciler) string {
	t.Helper()
	if _, err := r.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.step
}

func TestReconciler_SyncsMembers(t *testing.T) {
	f, r := newFakeCluster(t)
	if f.reconcileOnce(t, r); len(r.Reasons()) > 0 {
		t.Fatalf("reasons without a difference: %q", r.Reasons())
	}
	f.servers = append(f.servers[1:], consensus.MemberInfo{ID: "n9-0000000a", Voter: true})
	f.meta = append(f.meta, Replica{ID: "n9-0000000a"})
	f.reconcileOnce(t, r)
	if got := strings.Join(r.Reasons(), "\n"); strings.Count(got, "members are out of step: ") != 3 {
		t.Errorf("want three reasons: %s", got)
	}
	if f.reconcileOnce(t, r); len(r.Reasons()) > 0 || len(f.servers) != 3 || len(f.meta) != 3 {
		t.Errorf("not repaired: %q, %v, %v", r.Reasons(), f.servers, f.meta)
	}
}

// TestReconciler_ReplacesDeadMember follows all steps of a replacement: the new
// member votes only after it was promoted, and the old one is removed last.
func TestReconciler_ReplacesDeadMember(t *testing.T) {
	f, r := newFakeCluster(t)
	ask := Request{Verb: Replace, MemberRequest: api.MemberRequest{Name: "n3"}}
	var refused *RefusedError
	if err := r.Begin(t.Context(), ask); !errors.As(err, &refused) || !strings.Contains(err.Error(), "is running with its data directory") {
		t.Errorf("replace a live member: %v", err)
	}
	f.routed = f.routed[:2]
	delete(f.statuses, "n3")
	for _, wrong := range []struct {
		node consensus.WaitingNode
		want string
	}{
		{waitingNode("n4", "0000000b", "yard", ""), `is "n4", not "n3"`},
		{waitingNode("n3", "0000000b", "other", ""), `configured for yard "other"`},
		{waitingNode("n3", "0000000b", "yard", "id"), "belongs to a yard already"},
	} {
		f.joining = wrong.node
		if err := r.Begin(t.Context(), ask); err == nil || !strings.Contains(err.Error(), wrong.want) {
			t.Errorf("%v, want %q", err, wrong.want)
		}
	}
	f.joining = waitingNode("n3", "0000000b", "yard", "")
	if err := r.Begin(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	if err := r.Begin(t.Context(), ask); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("a second change: %v", err)
	}
	const id, old = "n3-0000000b", "n3-0000000a"
	wantStep := func(want string) {
		t.Helper()
		if got := f.reconcileOnce(t, r); !strings.HasPrefix(got, want) {
			t.Fatalf("step %q, want %q", got, want)
		}
	}
	wantStep("n3 opens its NATS routes")
	f.routed = append(f.routed, id)
	wantStep("n3 starts")
	f.statuses["n3"] = NodeStatus{ID: id, Applied: 5}
	wantStep("n3 catches up with JetStream")
	f.meta = append(f.meta, Replica{ID: id, Current: true})
	wantStep("n3 catches up with the log: 5 of 1000")
	if len(f.calls) > 0 {
		t.Errorf("calls too early: %q", f.calls)
	}
	f.statuses["n3"] = NodeStatus{ID: id, Applied: 999}
	wantStep("n3 has a vote")
	if !slices.Equal(f.calls, []string{"promote " + id}) || !slices.Contains(f.servers, consensus.MemberInfo{ID: id, Voter: true}) || !slices.Contains(f.servers, consensus.MemberInfo{ID: old, Voter: true}) {
		t.Errorf("calls %q, servers %v", f.calls, f.servers)
	}
	r.routeLossGrace = routeLossTimeout
	wantStep("n3 has no route")
	r.routeLossGrace = 0
	f.streams[0].Replicas[1] = Replica{ID: "n2-0000000a", Lag: 7}
	clear(r.lastCurrent) // it was current a moment ago
	wantStep("streams have to be current on other members first: 1 of 1 are not (YARD_JOBS_0)")
	if !slices.Contains(f.servers, consensus.MemberInfo{ID: old, Voter: true}) {
		t.Error("it lost its vote before its replicas could be spared")
	}
	f.streams[0].Replicas[1] = Replica{ID: "n2-0000000a", Current: true}
	wantStep("n3 is removed from JetStream")
	f.streams[0].Replicas[2] = Replica{ID: id, Lag: 7}
	wantStep("streams are replicated: 1 of 1")
	f.streams[0].Replicas[2] = Replica{ID: id, Current: true}
	wantStep("n3 is removed")
	if got := f.Membership(); got.PendingChange() != "" || len(got.Members) != 3 || slices.Contains(f.servers, consensus.MemberInfo{ID: old, Voter: true}) {
		t.Errorf("at the end: %+v, %v", got, f.servers)
	}
	if v := r.View(t.Context()); len(v.Members) != 3 || v.Members[2].JetStream != "current" || !v.Members[2].Voter || v.Members[2].Streams != 1 {
		t.Errorf("view: %+v", v)
	}
}

func TestReconciler_CancelsJoinWithoutRoute(t *testing.T) {
	f, r := newFakeCluster(t)
	f.joining = waitingNode("n4", "0000000b", "yard", "")
	if err := r.Begin(t.Context(), Request{Verb: Add, MemberRequest: api.MemberRequest{Name: "n4", Route: "h:3", Raft: "h:4"}}); err != nil {
		t.Fatal(err)
	}
	f.reconcileOnce(t, r)
	r.startedAt = r.startedAt.Add(-routeTimeout)
	for range 5 {
		f.reconcileOnce(t, r)
	}
	if v := r.View(t.Context()); len(v.Members) != 3 || !strings.Contains(v.Outcome, "cluster.secret") {
		t.Errorf("%+v", v)
	}
}

// TestBegin_NodeWithAnotherSecret checks that the error names the secret, and not an empty
// directory that would not help.
func TestBegin_NodeWithAnotherSecret(t *testing.T) {
	f, r := newFakeCluster(t)
	f.probeErr = &consensus.RefusedError{Peer: "h:4", Reason: "has another cluster.secret"}
	err := r.Begin(t.Context(), Request{Verb: Add, MemberRequest: api.MemberRequest{Name: "n4", Route: "h:3", Raft: "h:4"}})
	if err == nil || err.Error() != "the node at h:4 has another cluster.secret" {
		t.Errorf("%v", err)
	}
}

// TestReconciler_DeadMemberReplicas checks that replicas that never catch up do
// not keep a dead member forever.
func TestReconciler_DeadMemberReplicas(t *testing.T) {
	f, r := newFakeCluster(t)
	f.streams[0].Replicas[1], r.startedAt = Replica{ID: "n2-0000000a", Lag: 7, Offline: true}, time.Now()
	if left, err := r.awaitSpare(t.Context(), "n3-0000000a"); err != nil || left == "" {
		t.Errorf("%q, %v", left, err)
	}
	if left, err := r.awaitSpare(t.Context(), "n4-0000000a"); err != nil || left != "" {
		t.Errorf("a member without replicas: %q, %v", left, err)
	}
	r.startedAt = time.Now().Add(-replicaTimeout - time.Second)
	if left, err := r.awaitSpare(t.Context(), "n3-0000000a"); err != nil || left != "" {
		t.Errorf("after %s: %q, %v", replicaTimeout, left, err)
	}
}

// TestReconciler_CancelTooLate checks that a cancellation that is refused does not
// set an outcome.
func TestReconciler_CancelTooLate(t *testing.T) {
	_, r := newFakeCluster(t)
	if err := r.Begin(t.Context(), Request{Verb: Cancel}); !errors.Is(err, ledger.ErrNoChange) {
		t.Errorf("without a pending change: %v", err)
	}
	if v := r.View(t.Context()); v.Outcome != "" {
		t.Errorf("outcome %q", v.Outcome)
	}
}

// TestReconciler_RemovesLivingMember checks that nothing is removed while a stream
// has no leader that could report its replicas, and that the node is notified
// before the remaining streams are replicated.
func TestReconciler_RemovesLivingMember(t *testing.T) {
	f, r := newFakeCluster(t)
	const id = "n4-0000000b"
	f.joining = waitingNode("n4", "0000000b", "yard", "")
	if err := r.Begin(t.Context(), Request{Verb: Add, MemberRequest: api.MemberRequest{Name: "n4", Route: "h:3", Raft: "h:4"}}); err != nil {
		t.Fatal(err)
	}
	f.routed, f.meta, f.statuses["n4"] = append(f.routed, id), append(f.meta, Replica{ID: id, Current: true}), NodeStatus{ID: id}
	if got := f.reconcileOnce(t, r); got != "n4 has a vote" {
		t.Fatalf("step %q", got)
	}
	if err := r.Begin(t.Context(), Request{Verb: Remove, MemberRequest: api.MemberRequest{Name: "n4"}}); err != nil {
		t.Fatal(err)
	}
	f.calls = nil
	for _, step := range []struct {
		replicas []Replica
		want     string
		calls    []string
	}{
		{nil, "streams are moved to other members: 1 of 1", []string{"evacuate " + id}},
		{f.streams[0].Replicas, "n4 is removed from JetStream", nil},
		{nil, "streams are replicated: 1 of 1", []string{"notify " + id}},
		{f.streams[0].Replicas, "n4 is removed", []string{"notify " + id}},
	} {
		f.streams[0].Replicas, f.calls = step.replicas, nil
		if got := f.reconcileOnce(t, r); !strings.HasPrefix(got, step.want) || !slices.Equal(f.calls, step.calls) {
			t.Errorf("step %q after calls %q, want %q after %q", got, f.calls, step.want, step.calls)
		}
	}
	if slices.Contains(f.servers, consensus.MemberInfo{ID: id, Voter: true}) || len(f.Membership().Members) != 3 {
		t.Errorf("at the end: %v, %+v", f.servers, f.Membership())
	}
}
