package bench

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// fakeNode is the other end of a wire, controlled by the test.
type fakeNode struct {
	t  *testing.T
	nc net.Conn
	in *frame.Reader
}

func pipe(t *testing.T) (*wire, *fakeNode) {
	a, b := net.Pipe()
	for _, nc := range []net.Conn{a, b} {
		nc.SetDeadline(time.Now().Add(10 * time.Second))
		t.Cleanup(func() { nc.Close() })
	}
	return &wire{nc: a, in: frame.NewReader(a, overhop.DefaultFrameLimit)}, &fakeNode{t, b, frame.NewReader(b, overhop.DefaultFrameLimit)}
}

// expect reads one request, which must be of type want, and returns it.
func (s *fakeNode) expect(want int64) overhop.Envelope {
	s.t.Helper()
	payload, err := s.in.Next()
	if err != nil {
		s.t.Fatal(err)
	}
	e, err := overhop.ParseEnvelope(slices.Clone(payload))
	if err != nil || e.T != want {
		s.t.Fatalf("t=%d, error %v, want t=%d", e.T, err, want)
	}
	return e
}

func (s *fakeNode) write(message []byte) {
	s.t.Helper()
	if _, err := s.nc.Write(message); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fakeNode) ok(e overhop.Envelope) { s.write(overhop.AppendOK(nil, e.RID, overhop.EmptyMap)) }

func (s *fakeNode) refuse(e overhop.Envelope, code overhop.Code) {
	s.write(overhop.AppendErr(nil, e.RID, code, "", nil))
}

// quest sends a job with this due time.
func (s *fakeNode) quest(jid string, due int64) {
	s.t.Helper()
	payload := overhop.Raw(appendEnqueue(nil, "q", "", "", 0, due))
	q := &overhop.Quest{JID: jid, Queue: "q", Attempt: 1, Payload: payload.Get("job_payload"), Token: [16]byte{7}}
	message, err := overhop.AppendQuest(nil, q, overhop.DefaultFrameLimit)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(message)
}

// startWorker runs one worker of a load over a pipe.
func startWorker(t *testing.T, l *load) *fakeNode {
	w, s := pipe(t)
	ctx, stop := context.WithCancel(t.Context())
	h := &workerSet{load: l, stop: stop}
	w.out, _ = overhop.AppendFields(nil, overhop.TSubscribe, ridSubscribe, overhop.Fields{"q": "q", "credits": 1})
	h.running.Go(func() { h.work(ctx, &worker{wire: w, load: l, active: make(map[string]activeJob)}) })
	t.Cleanup(h.close)
	s.ok(s.expect(overhop.TSubscribe))
	return s
}

// acked reads the ACK of a job and its DONE, and answers the ACK.
func (s *fakeNode) acked() (done overhop.Envelope) {
	s.t.Helper()
	ack := s.expect(overhop.TAck)
	done = s.expect(overhop.TDone)
	s.ok(ack)
	if d, err := overhop.ParseDone(done.P); err != nil || d.Credits != 1 || !bytes.Equal(d.Token, append([]byte{7}, make([]byte, 15)...)) {
		s.t.Errorf("DONE %+v, error %v", d, err)
	}
	return done
}

func TestWorker_EndsEachJobOnce(t *testing.T) {
	l := &load{}
	l.begin()
	s := startWorker(t, l)
	for i := range int64(3) {
		s.quest("q:"+string('a'+rune(i)), i)
		s.ok(s.acked())
	}
	l.accepted.Store(3)
	if err := l.awaitEnds(t.Context()); err != nil || len(l.latencies) != 3 || l.failure() != nil {
		t.Errorf("error %v, %d started, failure %v", err, len(l.latencies), l.failure())
	}
}

// TestWorker_FailsJobs checks that one of failEvery jobs ends with a FAIL that is not retried, also if
// it is reported again.
func TestWorker_FailsJobs(t *testing.T) {
	l := &load{failEvery: 2}
	l.begin()
	s := startWorker(t, l)
	s.quest("q:a", 1)
	s.ok(s.acked())
	s.quest("q:b", 2)
	s.ok(s.expect(overhop.TAck))
	for _, again := range []bool{true, false} {
		e := s.expect(overhop.TFail)
		if fail, err := overhop.ParseFail(e.P); err != nil || e.RID != "q:b" || fail.Retry || fail.Credits != 1 || fail.Message != "mailbox 2 is full" {
			t.Errorf("FAIL of %s %+v, error %v", e.RID, fail, err)
		}
		if again {
			s.refuse(e, overhop.CodeUnavailable)
		} else {
			s.ok(e)
		}
	}
	s.quest("q:c", 3)
	s.ok(s.acked())
	l.accepted.Store(3)
	if err := l.awaitEnds(t.Context()); err != nil || l.failure() != nil {
		t.Errorf("error %v, failure %v", err, l.failure())
	}
}

// TestWorker_Rerun checks that a load with nodes that die accepts repeated jobs and
// reports outcomes again.
func TestWorker_Rerun(t *testing.T) {
	l := &load{seen: make(map[int64]bool)}
	l.begin()
	s := startWorker(t, l)
	s.quest("q:a", 1)
	s.refuse(s.acked(), overhop.CodeUnavailable)
	s.ok(s.expect(overhop.TDone))
	s.quest("q:a", 1)
	s.ok(s.acked())
	s.quest("q:b", 2)
	s.refuse(s.acked(), overhop.CodeLeaseLost)
	s.quest("q:b", 2)
	s.ok(s.acked())
	s.quest("q:c", 3)
	s.acked() // all earlier messages are handled
	if started, ended := len(l.latencies), l.settled.Load(); started != 3 || ended != 2 || l.failure() != nil {
		t.Errorf("%d started, %d ended, failure %v", started, ended, l.failure())
	}
}

func TestWorker_FailsTheLoad(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(s *fakeNode)
		want string
	}{
		"a refused outcome": {func(s *fakeNode) { s.quest("q:a", 1); s.refuse(s.acked(), overhop.CodeLeaseLost) }, "LEASE_LOST"},
		"a job of another load": {func(s *fakeNode) {
			b, _ := overhop.AppendQuest(nil, &overhop.Quest{JID: "q:x", Attempt: 1}, overhop.DefaultFrameLimit)
			s.write(b)
		}, `job "q:x", which is not part of this load`},
		"a broken connection": {func(s *fakeNode) { s.nc.Close() }, "worker: "},
	} {
		t.Run(name, func(t *testing.T) {
			l := &load{}
			l.begin()
			c.do(startWorker(t, l))
			err := until(t.Context(), waitTimeout, func() bool { return l.failure() != nil })
			if err != nil || !strings.Contains(l.failure().Error(), c.want) {
				t.Errorf("error %v, failure %v", err, l.failure())
			}
		})
	}
}

func TestOverhopConn(t *testing.T) {
	w, s := pipe(t)
	registered := make(chan *overhop.Client, 1)
	go func() {
		client, err := overhop.Connect(t.Context(), w.nc, overhop.Options{})
		if err != nil {
			t.Error(err)
		}
		registered <- client
	}()
	s.write(overhop.AppendHi(nil, s.expect(overhop.THello).RID, overhop.Hello{Delivery: true}, "n1", overhop.DefaultFrameLimit))
	wid, _ := overhop.AppendFields(nil, overhop.TOK, s.expect(overhop.TRegister).RID, overhop.Fields{"wid": "019aa000-0000-7000-8000-000000000001"})
	s.write(wid)
	d := overhopConn{<-registered}
	go d.Run(t.Context()) //nolint:errcheck // ends with the connection
	answers := make(chan error, 3)
	l := &load{subject: "q", key: "k-"}
	for i := range 3 {
		d.submit(l, i, time.Duration(i), func(err error) { answers <- err })
	}
	var asked []overhop.Envelope
	for i := range int64(3) {
		e := s.expect(overhop.TEnqueue)
		m, err := overhop.ParseEnqueue(e.P, true)
		if due, _ := m.Payload.Get("due").Int(); err != nil || due != i || m.Key != "k-"+string('0'+rune(i)) || m.Queue != "q" || len(m.Payload) != bodySize {
			t.Fatalf("ENQUEUE %+v with %d bytes, error %v", m, len(m.Payload), err)
		}
		asked = append(asked, e)
	}
	s.ok(asked[0])
	if err := <-answers; err != nil {
		t.Error(err)
	}
	s.refuse(asked[1], overhop.CodeUnavailable) // repeated under its key
	s.refuse(asked[2], overhop.CodeQueueNotFound)
	if err := <-answers; overhop.ErrorCode(err) != overhop.CodeQueueNotFound {
		t.Errorf("error %v", err)
	}
	again := s.expect(overhop.TEnqueue)
	if m, _ := overhop.ParseEnqueue(again.P, true); m.Key != "k-1" || l.repeated.Load() != 1 {
		t.Errorf("repeated %q, %d times", m.Key, l.repeated.Load())
	}
	s.nc.Close()
	if err := <-answers; err == nil {
		t.Error("a call succeeded without a connection")
	}
}

func TestIdleCrowd_Result(t *testing.T) {
	c := &idleCrowd{count: 100, fault: errors.New("connection refused")}
	for i := range 100 {
		if _, _, err := c.result(); err == nil || !strings.Contains(err.Error(), "of 100 workers") || c.allBack() {
			t.Fatalf("%d of 100: error %v, back %t", i, err, c.allBack())
		}
		c.took = append(c.took, time.Duration(100-i))
	}
	most, all, err := c.result()
	if most != 95 || all != 100 || err != nil || !c.allBack() {
		t.Errorf("95 %% after %d, all after %d, error %v", most, all, err)
	}
}

func TestReadInUse(t *testing.T) {
	const profile = "heap profile: 1: 2\n# HeapSys = 99\n# HeapInuse = 4096\n# HeapIdle = 7\n# Stack = 2048 / 9999\n"
	if sum, err := readInUse(strings.NewReader(profile)); sum != 6144 || err != nil {
		t.Errorf("%d bytes, error %v, want 6144", sum, err)
	}
	for _, bad := range []string{"", "# HeapInuse = 4096\n", "# HeapInuse = many\n# Stack = 1 / 1\n"} {
		if sum, err := readInUse(strings.NewReader(bad)); err == nil {
			t.Errorf("%q gave %d bytes", bad, sum)
		}
	}
}

func TestPerWorker(t *testing.T) {
	before := footprint{resident: 1 << 20, inUse: 1 << 19, files: 10}
	after := footprint{resident: 1<<20 + 500*20480, inUse: 1<<19 + 500*10240, files: 510}
	if r, u, f := after.perWorker(before, 500); r != 20 || u != 10 || f != 1 {
		t.Errorf("%v KiB, %v KiB, %v descriptors", r, u, f)
	}
}

// TestShared checks that each figure gets every round once, and that each round is
// measured once.
func TestShared(t *testing.T) {
	measured := 0
	one := shared(func(*task) int {
		if measured++; measured == 3 {
			must.Do(errors.New("no more rounds"))
		}
		return measured
	})
	a := one(func(v int) round { return round{value: float64(v)} })
	b := one(func(v int) round { return round{value: float64(10 * v)} })
	for i, step := range []struct {
		run  measurement
		want float64
	}{{a, 1}, {a, 2}, {b, 10}, {b, 20}} {
		if r := step.run(&task{}); r.value != step.want {
			t.Errorf("step %d: %v, want %v", i, r.value, step.want)
		}
	}
	if err := perform(t.Context(), "", func(t *task) { b(t) }); err == nil || measured != 3 {
		t.Errorf("error %v after %d measurements", err, measured)
	}
}

// TestAlternating checks that both measurements are made once in each round, in alternating order.
func TestAlternating(t *testing.T) {
	var order string
	run := func(name string) measurement {
		return func(*task) round {
			order += name
			return round{value: float64(len(order))}
		}
	}
	a, b := alternating(run("a"), run("b"))
	var values []float64
	for range 3 {
		values = append(values, a(&task{}).value, b(&task{}).value)
	}
	if order != "abbaab" || !slices.Equal(values, []float64{1, 2, 4, 3, 5, 6}) {
		t.Errorf("order %s, values %v", order, values)
	}
}

// TestFigures_IncludeFloors checks that the floors of the selected figures, and no
// others, are measured.
func TestFigures_IncludeFloors(t *testing.T) {
	b := &bench{Options: Options{Only: []string{"overhop.enqueue", "yard1"}}}
	suites := b.suites()
	b.needed = floorsOf(suites, b.Only)
	var names []string
	for _, s := range suites {
		for _, e := range b.wanted(s) {
			names = append(names, e.name)
		}
	}
	want := []string{
		"floor.stream.sync64", "floor.stream.flight2048", "yard3.plain", "yard3.enqueue", "yard1.plain", "yard1.enqueue",
		"yard3.sync64", "yard1.sync64", "yard3.start500", "yard1.start500", "yard3.start2000", "yard1.start2000",
		"overhop.enqueue.sync64", "overhop.enqueue.flight32",
	}
	if !slices.Equal(names, want) {
		t.Errorf("selected %v, want %v", names, want)
	}
}

// TestFloorNames checks that floors exist and are measured before the figures that
// are compared with them.
func TestFloorNames(t *testing.T) {
	names := Names()
	for _, s := range (&bench{}).suites() {
		for _, e := range s.names {
			if floor := e.target.floor; floor != "" && slices.Index(names, floor) >= slices.Index(names, e.name) {
				t.Errorf("%s is compared with %s, which is not measured before it", e.name, floor)
			} else if floor != "" && !slices.Contains(names, floor) {
				t.Errorf("%s is compared with %s, which does not exist", e.name, floor)
			}
		}
	}
}
