package edge

import (
	"encoding/hex"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

type fields = overhop.Fields

const (
	violation = overhop.CodeProtocolViolation
	someJob   = "jobs:00000000-0000-4000-8000-000000000001"
)

// Every row of the requests that a registered client may get wrong: the code,
// and whether the connection stays.
func TestRefusals(t *testing.T) {
	float := overhop.Raw{0xc0}
	for _, c := range []struct {
		name string
		t    int64
		p    fields
		code overhop.Code
	}{
		{"PING with a key", overhop.TPing, fields{"a": 1}, violation},
		{"QUEUE without q", overhop.TQueue, nil, violation},
		{"QUEUE q int", overhop.TQueue, fields{"q": 1}, violation},
		{"LSQUEUE with a key", overhop.TLsQueue, fields{"a": 1}, violation},
		{"SUBSCRIBE without q", overhop.TSubscribe, nil, violation},
		{"SUBSCRIBE credits nil", overhop.TSubscribe, fields{"q": "jobs", "credits": nil}, violation},
		{"SUBSCRIBE credits -1", overhop.TSubscribe, fields{"q": "jobs", "credits": -1}, violation},
		{"SUBSCRIBE credits 2^32", overhop.TSubscribe, fields{"q": "jobs", "credits": int64(1) << 32}, violation},
		{"SUBSCRIBE unknown queue", overhop.TSubscribe, fields{"q": "none"}, overhop.CodeQueueNotFound},
		{"UNSUBSCRIBE bad sid", overhop.TUnsubscribe, fields{"sid": "x"}, violation},
		{"UNSUBSCRIBE unknown sid", overhop.TUnsubscribe, fields{"sid": "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d"}, overhop.CodeSubNotFound},
		{"CREDIT 0", overhop.TCredit, fields{"sid": "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d", "credits": 0}, violation},
		{"CREDIT unknown sid", overhop.TCredit, fields{"sid": "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d", "credits": 1}, overhop.CodeSubNotFound},
		{"ADDQUEUE without name", overhop.TAddQueue, nil, violation},
		{"ADDQUEUE config nil", overhop.TAddQueue, fields{"name": "q", "config": nil}, violation},
		{"ADDQUEUE limit 0", overhop.TAddQueue, fields{"name": "q", "config": fields{"concurrency_limit": 0}}, violation},
		{"ADDQUEUE overrides int", overhop.TAddQueue, fields{"name": "q", "config": fields{"allow_job_overrides": 1}}, violation},
		{"ADDQUEUE bad name", overhop.TAddQueue, fields{"name": "a b"}, overhop.CodeInvalidQueueName},
		{"ADDQUEUE system name", overhop.TAddQueue, fields{"name": "_x"}, overhop.CodeInvalidQueueName},
		{"ADDQUEUE long name", overhop.TAddQueue, fields{"name": strings.Repeat("q", 129)}, overhop.CodeInvalidQueueName},
		{"ADDQUEUE existing", overhop.TAddQueue, fields{"name": "jobs"}, overhop.CodeDuplicateQueue},
		{"STATUS with a key", overhop.TStatus, fields{"a": 1}, violation},
		{"RMQUEUE unknown", overhop.TRmQueue, fields{"q": "none"}, overhop.CodeQueueNotFound},
		{"RMQUEUE unknown system", overhop.TRmQueue, fields{"q": "_none"}, overhop.CodeQueueNotFound},
		{"RMQUEUE system", overhop.TRmQueue, fields{"q": "_system"}, overhop.CodeSystemQueue},
		{"PAUSE system", overhop.TPause, fields{"q": "_system"}, overhop.CodeSystemQueue},
		{"RESUME running", overhop.TResume, fields{"q": "jobs"}, overhop.CodeQueueRunning},
		{"ENQUEUE without q", overhop.TEnqueue, nil, violation},
		{"ENQUEUE unknown", overhop.TEnqueue, fields{"q": "none"}, overhop.CodeQueueNotFound},
		{"ENQUEUE system", overhop.TEnqueue, fields{"q": "_system"}, overhop.CodeSystemQueue},
		{"ENQUEUE scheduled_at nil", overhop.TEnqueue, fields{"q": "jobs", "scheduled_at": nil}, violation},
		{"ENQUEUE scheduled_at text", overhop.TEnqueue, fields{"q": "jobs", "scheduled_at": "soon"}, violation},
		{"ENQUEUE max_attempts nil", overhop.TEnqueue, fields{"q": "jobs", "max_attempts": nil}, violation},
		{"ENQUEUE max_attempts 0", overhop.TEnqueue, fields{"q": "jobs", "max_attempts": 0}, violation},
		{"ENQUEUE retry_interval 0", overhop.TEnqueue, fields{"q": "jobs", "retry_interval_ms": 0}, violation},
		{"ENQUEUE unique_key", overhop.TEnqueue, fields{"q": "jobs", "unique_key": "k"}, overhop.CodeNotImplemented},
		{"ENQUEUE long key", overhop.TEnqueue, fields{"q": "jobs", "key": strings.Repeat("k", 129)}, overhop.CodeInvalidJobPayload},
		{"JOB jid int", overhop.TJob, fields{"jid": 1}, violation},
		{"JOB without colon", overhop.TJob, fields{"jid": "x"}, overhop.CodeInvalidJobID},
		{"JOB without queue", overhop.TJob, fields{"jid": ":00000000-0000-4000-8000-000000000001"}, overhop.CodeInvalidJobID},
		{"JOB bad uuid", overhop.TJob, fields{"jid": "jobs:1"}, overhop.CodeInvalidJobID},
		{"JOB system", overhop.TJob, fields{"jid": "_system:1"}, overhop.CodeSystemQueue},
		{"RMJOB unknown", overhop.TRmJob, fields{"jid": someJob}, overhop.CodeJobNotFound},
		{"LSJOB without status", overhop.TLsJob, fields{"q": "jobs"}, violation},
		{"LSJOB page 0", overhop.TLsJob, fields{"q": "jobs", "status": "new", "page": 0}, violation},
		{"LSJOB unknown queue", overhop.TLsJob, fields{"q": "none", "status": "new"}, overhop.CodeQueueNotFound},
		{"LSJOB bad status", overhop.TLsJob, fields{"q": "jobs", "status": "old"}, overhop.CodeInvalidStatusFilter},
		{"QSTATS unknown", overhop.TQStats, fields{"q": "none"}, overhop.CodeQueueNotFound},
		{"QSTATS system", overhop.TQStats, fields{"q": "_system"}, overhop.CodeSystemQueue},
		{"unknown t", 19, nil, violation},
		{"a server's t", overhop.TQuest, nil, violation},
		{"ACK without tok", overhop.TAck, fields{"jid": someJob}, violation},
		{"ACK tok text", overhop.TAck, fields{"jid": someJob, "tok": "x"}, violation},
		{"ACK foreign tok", overhop.TAck, fields{"jid": someJob, "tok": make([]byte, 16)}, overhop.CodeLeaseLost},
		{"ACK short tok", overhop.TAck, fields{"jid": someJob, "tok": []byte{1}}, overhop.CodeLeaseLost},
		{"ACK bad jid", overhop.TAck, fields{"jid": "x", "tok": make([]byte, 16)}, overhop.CodeInvalidJobID},
		{"DONE foreign tok", overhop.TDone, fields{"jid": someJob, "tok": make([]byte, 16), "result": float}, overhop.CodeLeaseLost},
		{"FAIL without error", overhop.TFail, fields{"jid": someJob, "tok": make([]byte, 16)}, violation},
		{"PROGRESS 101 percent", overhop.TProgress, fields{"jid": someJob, "tok": make([]byte, 16), "percent": 101}, violation},
		{"LOG lines text", overhop.TLog, fields{"jid": someJob, "tok": make([]byte, 16), "lines": "x"}, violation},
		{"BEAT jobs map", overhop.TBeat, fields{"jobs": fields{}}, violation},
		{"AWAIT too long", overhop.TAwait, fields{"jid": someJob, "timeout_ms": 600_001}, violation},
		{"AWAIT unknown", overhop.TAwait, fields{"jid": someJob, "timeout_ms": 1}, overhop.CodeJobNotFound},
		{"CANCEL unknown", overhop.TCancel, fields{"jid": someJob}, overhop.CodeJobNotFound},
		{"RETRYJOB unknown", overhop.TRetryJob, fields{"jid": someJob}, overhop.CodeJobNotFound},
		{"CLRQUEUE active", overhop.TClrQueue, fields{"q": "jobs", "statuses": []string{"active"}}, overhop.CodeInvalidStatusFilter},
		{"OBLITERATE without force", overhop.TObliterate, fields{"q": "jobs"}, overhop.CodeQueueNotEmpty},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Config{}, func(r *rig) {
				p := r.register(true)
				p.refused(c.t, c.p, c.code)
				if c.code == violation {
					p.closed()
				} else {
					p.ask(overhop.TPing, nil, overhop.TPong)
				}
			})
		})
	}
}

func TestQueues(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(false)
		if got := p.ask(overhop.TQueue, fields{"q": "none"}, overhop.TOK); got.Len() != 0 {
			t.Errorf("unknown queue is %s", text(got))
		}
		qid := str(p.ask(overhop.TAddQueue, fields{"name": "mail", "config": fields{"concurrency_limit": 3, "other": 1}}, overhop.TOK).Get("qid"))
		want := `{"config":{"allow_job_overrides":true,"concurrency_limit":3},"id":"` + qid + `","name":"mail","state":"running"}`
		if got := text(p.ask(overhop.TQueue, fields{"q": "mail"}, overhop.TOK)); got != want {
			t.Errorf("queue is %s, want %s", got, want)
		}
		p.ask(overhop.TPause, fields{"q": "mail"}, overhop.TOK)
		p.refused(overhop.TPause, fields{"q": "mail"}, overhop.CodeQueuePaused)
		var names []string
		for q := range p.ask(overhop.TLsQueue, nil, overhop.TOK).Get("queues").Items() {
			names = append(names, str(q.Get("name"))+" "+str(q.Get("state")))
		}
		if got := strings.Join(names, ", "); got != "_system running, jobs running, mail paused" {
			t.Errorf("queues are %s", got)
		}
		p.ask(overhop.TResume, fields{"q": "mail"}, overhop.TOK)
		p.ask(overhop.TRmQueue, fields{"q": "mail"}, overhop.TOK)
		p.ask(overhop.TEnqueue, fields{"q": "jobs"}, overhop.TOK)
		p.refused(overhop.TRmQueue, fields{"q": "jobs"}, overhop.CodeQueueNotEmpty)
		if got := text(p.ask(overhop.TQStats, fields{"q": "jobs"}, overhop.TOK)); got !=
			`{"q":"jobs","stats":{"active":0,"completed":0,"delayed":0,"failed":0,"new":0,"waiting":1}}` {
			t.Errorf("stats are %s", got)
		}
		status := p.ask(overhop.TStatus, nil, overhop.TOK)
		if got := num(status.Get("pools").Get("workers_total")); got != 1 || str(status.Get("cluster").Get("authority")) != "n1" {
			t.Errorf("status is %s", text(status))
		}
	})
}

// What a producer sends comes back as it was, and reaches the yard in the form
// that carries it exactly.
func TestEnqueue(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(true)
		for _, c := range []struct {
			payload         any
			params, msgpack string
		}{
			{fields{"n": int64(1) << 60}, `{"n":1152921504606846976}`, ""},
			{fields{}, `{}`, ""},
			{[]any{1}, "", "9101"},
			{fields{"b": []byte{0xff}}, "", "81a162c401ff"},
			{"text", "", "a474657874"},
			{nil, "", "c0"},
		} {
			jid := str(p.ask(overhop.TEnqueue, fields{"q": "jobs", "job_payload": c.payload}, overhop.TOK).Get("jid"))
			spec := r.yard.specs[len(r.yard.specs)-1]
			if string(spec.Params) != c.params || hex.EncodeToString(spec.Payload) != c.msgpack {
				t.Errorf("%v became params %s payload %x", c.payload, spec.Params, spec.Payload)
			}
			record := p.ask(overhop.TJob, fields{"jid": jid}, overhop.TOK)
			if want := string(overhop.AppendValue(nil, c.payload)); string(record.Get("payload")) != want {
				t.Errorf("payload %v came back as %s", c.payload, text(record))
			}
			if str(record.Get("jid")) != jid || str(record.Get("status")) != "waiting" || num(record.Get("runtime").Get("attempts_so_far")) != 0 {
				t.Errorf("record is %s", text(record))
			}
		}
		p.ask(overhop.TEnqueue, fields{
			"q": "jobs", "fn": "r#h", "priority": 9, "timeout_ms": 1500, "max_attempts": 3, "retry_interval_ms": int64(1) << 62,
			"scheduled_at": "2030-01-01T00:00:00+02:00", "trace": map[string]string{"traceparent": "x"}, "key": "k",
		}, overhop.TOK)
		spec := r.yard.specs[len(r.yard.specs)-1]
		if spec.Function != "r#h" || *spec.Priority != 9 || *spec.TimeoutMS != 1500 || *spec.MaxAttempts != 3 ||
			*spec.RetryInterval != job.MaxDuration.Milliseconds() || spec.Trace["traceparent"] != "x" ||
			!spec.RunAt.Equal(time.Date(2029, 12, 31, 22, 0, 0, 0, time.UTC)) || spec.Payload != nil {
			t.Errorf("spec is %+v", spec)
		}
		upper := strings.ToUpper(someJob[5:])
		if got := p.ask(overhop.TJob, fields{"jid": "jobs:" + upper}, overhop.TOK); got.Len() != 0 {
			t.Errorf("another spelling of a job is %s", text(got))
		}
		seed := r.register(false)
		seed.ask(overhop.TEnqueue, fields{"q": "jobs", "fn": 7, "priority": "high", "unique_key": "k"}, overhop.TOK)
	})
}

func TestLsJobPages(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(false)
		for range 20 {
			p.ask(overhop.TEnqueue, fields{"q": "jobs"}, overhop.TOK)
			time.Sleep(time.Millisecond) // fake time, for different created_at
		}
		for page, want := range map[int]int{1: 15, 2: 5, 3: 0} {
			got := p.ask(overhop.TLsJob, fields{"q": "jobs", "status": "waiting", "page": page}, overhop.TOK)
			if got.Get("jobs").Len() != want || num(got.Get("page_size")) != 15 {
				t.Errorf("page %d has %d jobs, want %d", page, got.Get("jobs").Len(), want)
			}
		}
	})
}

// The yard's own failures keep the connection.
func TestYardFails(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(true)
		r.yard.fails = errBroken
		p.refused(overhop.TQueue, fields{"q": "jobs"}, overhop.CodeQueuePersistence)
		p.refused(overhop.TJob, fields{"jid": someJob}, overhop.CodeJobPersistence)
		p.refused(overhop.TStatus, nil, overhop.CodeDiagnostics)
		r.yard.fails = &job.UnavailableError{Reason: "no authority", RetryAfter: 2 * time.Second}
		p.send(overhop.TQueue, "x", fields{"q": "jobs"})
		if got := text(p.expect(overhop.TErr, "x")); got != `{"code":"UNAVAILABLE","details":{"retry_after_ms":2000},"msg":"yard is unavailable: no authority; try again in 2s"}` {
			t.Errorf("unavailable is %s", got)
		}
		p.ask(overhop.TPing, nil, overhop.TPong)
	})
}

// Bytes that make no sense end a connection without a word.
func TestHostileBytes(t *testing.T) {
	for name, text := range map[string]string{
		"zero length":      "00000000",
		"too large":        "00800001",
		"not a map":        "0000000190",
		"float":            "0000001784a17081a178ca00000000a3726964a131a17401a17602",
		"no rid":           "0000000a83a17080a17401a17602",
		"trailing":         "0000001184a17080a3726964a131a17401a1760200",
		"version 1":        "0000001084a17080a3726964a131a17401a17601",
		"http":             hex.EncodeToString([]byte("GET / HTTP/1.1\r\n\r\n")),
		"uint64 too large": "0000001b84a17081a178cfffffffffffffffffa3726964a131a17401a17602",
	} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(r *rig) {
				for _, p := range []*peer{r.connect(), r.register(true)} {
					go p.nc.Write(b)
					p.closed()
				}
			})
		})
	}
}

// Frames may come split anywhere, and many at once.
func TestSplitAndCoalesced(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		b, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
		b, _ = overhop.AppendFields(b, overhop.TRegister, "2", nil)
		for i := range 50 {
			b, _ = overhop.AppendFields(b, overhop.TPing, strings.Repeat("p", i+1), nil)
		}
		whole, split := r.connect(), r.connect()
		whole.write(b)
		for i := range b {
			split.write(b[i : i+1])
		}
		for _, p := range []*peer{whole, split} {
			p.expect(overhop.THi, "1")
			p.expect(overhop.TOK, "2")
			for i := range 50 {
				p.expect(overhop.TPong, strings.Repeat("p", i+1))
			}
		}
	})
}

func TestPurge(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		mute, shy, late := r.connect(), r.connect(), r.connect()
		shy.ask(overhop.THello, nil, overhop.THi)
		late.ask(overhop.THello, nil, overhop.THi)
		busy := r.register(false)
		time.Sleep(9 * time.Second)
		mute.quiet()
		time.Sleep(2 * time.Second)
		mute.closed()
		for _, p := range []*peer{shy, late} {
			if got := num(p.expect(overhop.TIdent, "0").Get("register_timeout_seconds")); got != 2 {
				t.Errorf("register_timeout_seconds is %d", got)
			}
		}
		late.ask(overhop.TRegister, nil, overhop.TOK)
		time.Sleep(2 * time.Second)
		if got := str(shy.expect(overhop.TErr, "0").Get("code")); got != "CONNECTION_TIMEOUT" {
			t.Errorf("code is %s", got)
		}
		shy.closed()
		time.Sleep(time.Hour)
		late.ask(overhop.TPing, nil, overhop.TPong)
		busy.ask(overhop.TPing, nil, overhop.TPong)
	})
}

func TestIdleTimeout(t *testing.T) {
	bubble(t, Config{Limits: LimitsConfig{IdleTimeout: time.Minute}}, func(r *rig) {
		p := r.register(false)
		for range 3 {
			time.Sleep(50 * time.Second)
			p.ask(overhop.TPing, nil, overhop.TPong)
		}
		time.Sleep(time.Minute)
		p.closed()
	})
}

// Answers keep the order of their requests, whenever they are ready, and what
// reads the yard waits for what was asked before.
func TestAnswersInOrder(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p := r.register(true)
		r.yard.holding = true
		for _, rid := range []string{"1", "2", "3"} {
			p.send(overhop.TEnqueue, rid, fields{"q": "jobs"})
		}
		p.send(overhop.TUnsubscribe, "4", fields{"sid": "7b3c6a52-4f6e-4a51-9c1e-1d1a3a2b4c5d"})
		p.send(overhop.TQStats, "5", fields{"q": "jobs"})
		p.quiet()
		r.yard.hold[2]()
		p.quiet()
		r.yard.hold[0]()
		p.expect(overhop.TOK, "1")
		p.quiet()
		r.yard.hold[1]()
		p.expect(overhop.TOK, "2")
		p.expect(overhop.TOK, "3")
		p.expect(overhop.TErr, "4")
		p.expect(overhop.TOK, "5")
	})
}

// A client that does not read is cut off, and nobody waits for it.
func TestSlowReader(t *testing.T) {
	bubble(t, Config{Limits: LimitsConfig{WriteTimeout: time.Second}}, func(r *rig) {
		nc := r.ln.dial()
		b, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
		b, _ = overhop.AppendFields(b, overhop.TRegister, "2", nil)
		nc.SetWriteDeadline(time.Now().Add(time.Minute))
		if _, err := nc.Write(b); err != nil {
			t.Fatal(err)
		}
		other := r.register(false)
		other.ask(overhop.TPing, nil, overhop.TPong)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := nc.Write(b); err == nil {
			t.Error("the deaf client is still connected")
		}
	})
}

func TestConnectionLimits(t *testing.T) {
	bubble(t, Config{Limits: LimitsConfig{PerAddress: 2}}, func(r *rig) {
		first := r.register(false)
		r.register(false)
		r.connect().closed()
		first.nc.Close()
		synctest.Wait()
		r.register(false)
	})
}

// A flood of SUBSCRIBE ends at the limit.
func TestSubscriptionLimit(t *testing.T) {
	bubble(t, Config{Limits: LimitsConfig{Subscriptions: 1}}, func(r *rig) {
		p, _ := r.worker(0)
		p.refused(overhop.TSubscribe, fields{"q": "jobs"}, overhop.CodeDuplicateSub)
		p.ask(overhop.TAddQueue, fields{"name": "more"}, overhop.TOK)
		p.refused(overhop.TSubscribe, fields{"q": "more"}, overhop.CodeRateLimited)
	})
}

func TestResponseTooLarge(t *testing.T) {
	bubble(t, Config{Wire: WireConfig{MaxEnvelope: 65536}}, func(r *rig) {
		p := r.register(false)
		for range 2 {
			p.ask(overhop.TEnqueue, fields{"q": "jobs", "job_payload": strings.Repeat("x", 60_000)}, overhop.TOK)
		}
		p.refused(overhop.TLsJob, fields{"q": "jobs", "status": "waiting"}, overhop.CodeResponseTooLarge)
		p.ask(overhop.TPing, nil, overhop.TPong)
	})
}

var _ net.Listener = (*pipeListener)(nil)
