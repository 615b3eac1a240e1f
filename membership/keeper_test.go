package membership

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"yardmaster/ledger"
)

// yard is three members in step, whose lists a test bends.
type yard struct {
	l       *ledger.Ledger
	at      ledger.Stamp
	servers []Server
	meta    []Copy
	streams []StreamCopies
	words   map[string]Word // by node
	routed  []string
	meets   Newcomer
	calls   []string
}

func newYard(t *testing.T) (*yard, *Keeper) {
	t.Helper()
	y := &yard{l: ledger.New(), at: ledger.Stamp{Term: 1, At: time.Unix(1000, 0)}, words: map[string]Word{}}
	y.at.Index++
	y.l.Apply(y.at, []ledger.Command{&ledger.Lead{Owner: "n1", Until: y.at.At.Add(time.Hour)}})
	y.at.Epoch = y.l.Authority().Epoch
	lane := StreamCopies{Stream: "YARD_JOBS_0", Want: 3}
	for i, m := range y.Founders() {
		y.servers = append(y.servers, Server{m.ID(), true})
		y.meta = append(y.meta, Copy{ID: m.ID(), Leader: i == 0, Current: true})
		y.routed = append(y.routed, m.ID())
		y.words[m.Node] = Word{ID: m.ID()}
		lane.Copies = append(lane.Copies, Copy{ID: m.ID(), Leader: i == 0, Current: true})
	}
	y.streams = []StreamCopies{lane}
	k := New("n1-0000000a", "yard", y, slog.New(slog.DiscardHandler))
	k.patience, k.away = 0, 0
	if _, err := k.turn(t.Context()); err != nil || y.Roll().Revision != 1 {
		t.Fatalf("the roll is not begun: %v", err)
	}
	return y, k
}

func (y *yard) Founders() (all []ledger.Member) {
	for _, name := range []string{"n1", "n2", "n3"} {
		all = append(all, ledger.Member{Node: name, Dir: "0000000a", Route: "h:1", Raft: "h:2", State: ledger.Present})
	}
	return all
}

func (y *yard) Roll() ledger.Roll { return y.l.Roll() }
func (y *yard) Do(_ context.Context, c ledger.Command) error {
	y.at.Index++
	return y.l.Apply(y.at, []ledger.Command{c})[0].Err
}
func (y *yard) Servers() []Server { return y.servers }
func (y *yard) Last() uint64      { return 1000 }
func (y *yard) Admit(_ context.Context, id string, vote bool) error {
	y.servers = slices.DeleteFunc(y.servers, func(s Server) bool { return s.ID == id })
	y.servers = append(y.servers, Server{id, vote})
	return nil
}
func (y *yard) Unseat(_ context.Context, id string) error {
	y.servers = slices.DeleteFunc(y.servers, func(s Server) bool { return s.ID == id })
	return nil
}
func (y *yard) Meet(string) (Newcomer, error) { return y.meets, nil }
func (y *yard) Routed() []string              { return y.routed }
func (y *yard) Streams(context.Context) (all []StreamCopies, err error) {
	for _, s := range y.streams {
		s.Copies = slices.Clone(s.Copies)
		all = append(all, s)
	}
	return all, nil
}
func (y *yard) Evacuate(_ context.Context, id string) error {
	y.calls = append(y.calls, "evacuate "+id)
	return nil
}
func (y *yard) Vouch(_ context.Context, _, id string) error {
	y.calls = append(y.calls, "vouch "+id)
	return nil
}
func (y *yard) Dismiss(_ context.Context, _, id string) error {
	y.calls = append(y.calls, "dismiss "+id)
	return nil
}
func (y *yard) HandOver(context.Context, string) error {
	y.calls = append(y.calls, "hand over")
	return nil
}
func (y *yard) Expel(_ context.Context, id string) error {
	y.meta = slices.DeleteFunc(y.meta, func(c Copy) bool { return c.ID == id })
	return nil
}
func (y *yard) Ask(_ context.Context, node string) (Word, error) {
	w, ok := y.words[node]
	if !ok {
		return w, errors.New("silent")
	}
	if w.Applied == 0 {
		w.Applied = 1000
	}
	if node == "n1" {
		w.Meta, w.Led = y.meta, true
	}
	return w, nil
}

// step turns once and gives what the change waits for.
func (y *yard) step(t *testing.T, k *Keeper) string {
	t.Helper()
	if _, err := k.turn(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.step
}

func TestKeeper_BringsInStep(t *testing.T) {
	y, k := newYard(t)
	if y.step(t, k); len(k.Reasons()) > 0 {
		t.Fatalf("in step: %q", k.Reasons())
	}
	y.servers = append(y.servers[1:], Server{"n9-0000000a", true})
	y.meta = append(y.meta, Copy{ID: "n9-0000000a"})
	y.step(t, k)
	if got := strings.Join(k.Reasons(), "\n"); strings.Count(got, "members are out of step: ") != 3 {
		t.Errorf("out of step: %s", got)
	}
	if y.step(t, k); len(k.Reasons()) > 0 || len(y.servers) != 3 || len(y.meta) != 3 {
		t.Errorf("not mended: %q, %v, %v", k.Reasons(), y.servers, y.meta)
	}
}

// TestKeeper_ReplacesADeadMember walks the whole way: nobody votes before it has
// vouched, and the old seat goes last.
func TestKeeper_ReplacesADeadMember(t *testing.T) {
	y, k := newYard(t)
	ask := Question{Verb: Replace, Name: "n3"}
	var refused *RefusedError
	if err := k.Begin(t.Context(), ask); !errors.As(err, &refused) || !strings.Contains(err.Error(), "is heard with its data directory") {
		t.Errorf("replace one that lives: %v", err)
	}
	y.routed = y.routed[:2]
	delete(y.words, "n3")
	for _, wrong := range []struct {
		meets Newcomer
		says  string
	}{
		{Newcomer{Node: "n4", Dir: "0000000b", Yard: "yard"}, `a node "n4" answers`},
		{Newcomer{Node: "n3", Dir: "0000000b", Yard: "other"}, `configured for yard "other"`},
		{Newcomer{Node: "n3", Dir: "0000000b", Yard: "yard", Used: true}, "belongs to a yard already"},
	} {
		y.meets = wrong.meets
		if err := k.Begin(t.Context(), ask); err == nil || !strings.Contains(err.Error(), wrong.says) {
			t.Errorf("%v, want %q", err, wrong.says)
		}
	}
	y.meets = Newcomer{Node: "n3", Dir: "0000000b", Yard: "yard"}
	if err := k.Begin(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	if err := k.Begin(t.Context(), ask); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("a second change: %v", err)
	}
	const id, old = "n3-0000000b", "n3-0000000a"
	says := func(want string) {
		t.Helper()
		if got := y.step(t, k); !strings.HasPrefix(got, want) {
			t.Fatalf("it waits for %q, want %q", got, want)
		}
	}
	says("n3 opens its NATS routes")
	y.routed = append(y.routed, id)
	says("n3 starts")
	y.words["n3"] = Word{ID: id, Applied: 5}
	says("n3 catches up with JetStream")
	y.meta = append(y.meta, Copy{ID: id, Current: true})
	says("n3 catches up with the log: 5 of 1000")
	if len(y.calls) > 0 {
		t.Errorf("too early: %q", y.calls)
	}
	y.words["n3"] = Word{ID: id, Applied: 999}
	says("n3 has a vote")
	if !slices.Equal(y.calls, []string{"vouch " + id}) || !slices.Contains(y.servers, Server{id, true}) || !slices.Contains(y.servers, Server{old, true}) {
		t.Errorf("calls %q, servers %v", y.calls, y.servers)
	}
	k.away = awayFor
	says("n3 has no route")
	k.away = 0
	y.streams[0].Copies[1] = Copy{ID: "n2-0000000a", Lag: 7}
	clear(k.level) // it was current a moment ago
	says("streams have to be current on other members first: 1 of 1 are not (YARD_JOBS_0)")
	if !slices.Contains(y.servers, Server{old, true}) {
		t.Error("its vote went before its copies could")
	}
	y.streams[0].Copies[1] = Copy{ID: "n2-0000000a", Current: true}
	says("n3 is taken out of JetStream")
	y.streams[0].Copies[2] = Copy{ID: id, Lag: 7}
	says("streams are made whole: 1 of 1")
	y.streams[0].Copies[2] = Copy{ID: id, Current: true}
	says("n3 is out")
	if got := y.Roll(); got.Under() != "" || len(got.Members) != 3 || slices.Contains(y.servers, Server{old, true}) {
		t.Errorf("at the end: %+v, %v", got, y.servers)
	}
	if v := k.View(t.Context()); len(v.Members) != 3 || v.Members[2].JetStream != "current" || !v.Members[2].Voter || v.Members[2].Streams != 1 {
		t.Errorf("view: %+v", v)
	}
}

func TestKeeper_TakesBackWhoNeverComes(t *testing.T) {
	y, k := newYard(t)
	y.meets = Newcomer{Node: "n4", Dir: "0000000b", Yard: "yard"}
	if err := k.Begin(t.Context(), Question{Verb: Add, Name: "n4", Route: "h:3", Raft: "h:4"}); err != nil {
		t.Fatal(err)
	}
	y.step(t, k)
	k.began = k.began.Add(-routeTime)
	for range 5 {
		y.step(t, k)
	}
	if v := k.View(t.Context()); len(v.Members) != 3 || !strings.Contains(v.Outcome, "cluster.secret") {
		t.Errorf("%+v", v)
	}
}

// TestKeeper_DeadCopies: what is behind for good keeps no dead member in for ever.
func TestKeeper_DeadCopies(t *testing.T) {
	y, k := newYard(t)
	y.streams[0].Copies[1], k.began = Copy{ID: "n2-0000000a", Lag: 7, Offline: true}, time.Now()
	if left, err := k.spared(t.Context(), "n3-0000000a"); err != nil || left == "" {
		t.Errorf("%q, %v", left, err)
	}
	if left, err := k.spared(t.Context(), "n4-0000000a"); err != nil || left != "" {
		t.Errorf("of one on which nothing lies: %q, %v", left, err)
	}
	k.began = time.Now().Add(-lostTime - time.Second)
	if left, err := k.spared(t.Context(), "n3-0000000a"); err != nil || left != "" {
		t.Errorf("after %s: %q, %v", lostTime, left, err)
	}
}

// TestKeeper_CancelTooLate: who asks in vain changes nothing of what is told about the
// change that goes on.
func TestKeeper_CancelTooLate(t *testing.T) {
	_, k := newYard(t)
	if err := k.Begin(t.Context(), Question{Verb: Cancel}); !errors.Is(err, ledger.ErrNoChange) {
		t.Errorf("with nothing under way: %v", err)
	}
	if v := k.View(t.Context()); v.Outcome != "" {
		t.Errorf("it is told that %s", v.Outcome)
	}
}

// TestKeeper_TakesOutALivingMember: nothing goes while a stream has no leader
// that could say where it lies, and the node ends before the rest is waited for.
func TestKeeper_TakesOutALivingMember(t *testing.T) {
	y, k := newYard(t)
	const id = "n4-0000000b"
	y.meets = Newcomer{Node: "n4", Dir: "0000000b", Yard: "yard"}
	if err := k.Begin(t.Context(), Question{Verb: Add, Name: "n4", Route: "h:3", Raft: "h:4"}); err != nil {
		t.Fatal(err)
	}
	y.routed, y.meta, y.words["n4"] = append(y.routed, id), append(y.meta, Copy{ID: id, Current: true}), Word{ID: id}
	if got := y.step(t, k); got != "n4 has a vote" {
		t.Fatalf("it waits for %q", got)
	}
	if err := k.Begin(t.Context(), Question{Verb: Remove, Name: "n4"}); err != nil {
		t.Fatal(err)
	}
	y.calls = nil
	for _, step := range []struct {
		copies []Copy
		says   string
		calls  []string
	}{
		{nil, "streams are copied to others: 1 of 1", []string{"evacuate " + id}},
		{y.streams[0].Copies, "n4 is taken out of JetStream", nil},
		{nil, "streams are made whole: 1 of 1", []string{"dismiss " + id}},
		{y.streams[0].Copies, "n4 is out", []string{"dismiss " + id}},
	} {
		y.streams[0].Copies, y.calls = step.copies, nil
		if got := y.step(t, k); !strings.HasPrefix(got, step.says) || !slices.Equal(y.calls, step.calls) {
			t.Errorf("it waits for %q after %q, want %q after %q", got, y.calls, step.says, step.calls)
		}
	}
	if slices.Contains(y.servers, Server{id, true}) || len(y.Roll().Members) != 3 {
		t.Errorf("at the end: %v, %+v", y.servers, y.Roll())
	}
}
