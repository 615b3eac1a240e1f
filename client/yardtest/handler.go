package yardtest

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// HandlerRun is what a handler has done in one attempt: see [RunHandler].
type HandlerRun[R any] struct {
	// Result is what a caller that waits for the job gets; the zero value if Err is not nil.
	Result R
	// Err is the handler's error. It is a [*client.JobError] if the handler has panicked, or
	// its result or the args cannot be encoded or decoded. nil: the job has completed.
	Err error
	// Final means that the job fails without another attempt. RetryAfter and Snooze are the
	// delays that the handler has asked for; nil: none.
	Final              bool
	RetryAfter, Snooze *time.Duration
	// Progress and Log are what the handler has reported, in order.
	Progress []ProgressReport
	Log      []LogLine
}

// ProgressReport is one call of [client.JobInfo.Progress].
type ProgressReport struct {
	Percent int
	Data    json.RawMessage // empty: none
}

// LogLine is one line of a job's log. The level is that of a [client.JobInfo.Logger], or "".
type LogLine struct{ Level, Text string }

// RunHandler runs one attempt of a handler with args, as a worker does, and returns what it has
// done. There is no yard, and the test need not be in a bubble. The args and the result are
// encoded and decoded as on the way to a worker and back. The attempt is the first, with the
// fence 1, unless a change says otherwise:
//
//	run := yardtest.RunHandler(t.Context(), t, deliver, SendMail{To: "ann"}, func(job *client.JobInfo) { job.Attempt = 3 })
//
// If ctx ends, the worker stops and the handler's context ends. RunHandler blocks until the
// handler has returned.
func RunHandler[A client.Args, R any](ctx context.Context, t testing.TB, h func(context.Context, *client.Job[A]) (R, error), args A, changes ...func(*client.JobInfo)) HandlerRun[R] {
	t.Helper()
	spec := client.NewSpec(args)
	info := client.JobInfo{
		ID: spec.Queue + ":00000000-0000-0000-0000-000000000001", Queue: spec.Queue, Function: spec.Function,
		Attempt: 1, MaxAttempts: spec.MaxAttempts, Fence: 1, Accepted: time.Now(), Trace: spec.Trace,
	}
	for _, change := range changes {
		change(&info)
	}
	params, err := overhop.Marshal(args)
	if err != nil {
		t.Fatalf("yardtest: RunHandler: encode %T: %v", args, err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	node := &handlerNode{t: t, info: info, params: params, stop: stop}
	c, err := client.Open(ctx, client.Options{Nodes: []string{yardAddress}, Dial: node.dial, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatalf("yardtest: RunHandler: %v", err)
	}
	w := c.Worker()
	w.Concurrency, w.ShutdownGrace = 1, 1
	var run HandlerRun[R]
	client.Handle(w, func(ctx context.Context, job *client.Job[A]) (result R, err error) {
		result, run.Err = h(ctx, job)
		return result, run.Err
	}, client.Queue(info.Queue))
	if err := w.Run(ctx); err != nil {
		t.Fatalf("yardtest: RunHandler: %v", err)
	}
	_ = c.Close() // always nil
	node.serving.Wait()
	run.Progress, run.Log = node.progress, node.log
	if fail := node.failure; fail != nil {
		run.Final, run.RetryAfter, run.Snooze = !fail.Retry, fail.RetryAfter, fail.Snooze
		if run.Err == nil {
			run.Err = &client.JobError{ID: info.ID, Type: fail.Type, Code: fail.Code, Message: fail.Message, Attempts: info.Attempt}
		}
	} else if !node.ended && run.Err == nil {
		run.Err = ctx.Err() // before the handler was called
	} else if len(node.result) > 0 {
		if err := overhop.Unmarshal(node.result, &run.Result); err != nil {
			t.Fatalf("yardtest: RunHandler: decode the result: %v", err)
		}
	}
	return run
}

// handlerNode is the node of a worker that runs one job.
type handlerNode struct {
	t       testing.TB
	info    client.JobInfo
	params  overhop.Raw
	stop    context.CancelFunc // ends the worker
	serving sync.WaitGroup     // one goroutine per connection

	mu       sync.Mutex // guards the fields below
	sent     bool       // the job
	ended    bool       // there is an outcome
	progress []ProgressReport
	log      []LogLine
	result   overhop.Raw
	failure  *overhop.Fail // nil: the job has completed, or has not ended
}

// dial opens a connection to the node.
func (n *handlerNode) dial(context.Context, string) (net.Conn, error) {
	ours, theirs := newPipe("client:1", "node:1")
	n.serving.Go(func() {
		defer theirs.Close()
		in := frame.NewReader(theirs, overhop.MaxFrameLimit)
		for {
			received, err := in.Next()
			if err != nil {
				return // the client has closed the connection
			}
			request, err := overhop.ParseEnvelope(slices.Clone(received))
			if err != nil {
				n.t.Errorf("yardtest: RunHandler: %v", err)
				return
			}
			if _, err := theirs.Write(n.answer(request)); err != nil || request.T == overhop.TGoodbye && !isDrain(request.P) {
				return
			}
		}
	})
	return ours, nil
}

// isDrain reports whether a GOODBYE leaves the connection open.
func isDrain(p overhop.Raw) bool {
	goodbye, err := overhop.ParseGoodbye(p)
	return err == nil && goodbye.Drain
}

// answer returns the answer to a request and, after the first credit, the job.
func (n *handlerNode) answer(e overhop.Envelope) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	ok := func(fields overhop.Fields) []byte { return overhop.AppendOK(nil, e.RID, fields.Raw()) }
	switch e.T {
	case overhop.THello:
		hello := overhop.Hello{Delivery: true, JSON: true, Snooze: true}
		return overhop.AppendHi(nil, e.RID, hello, "yardtest", overhop.MaxFrameLimit)
	case overhop.TRegister:
		return ok(overhop.Fields{"wid": "yardtest"})
	case overhop.TSubscribe:
		return ok(overhop.Fields{"sid": "yardtest"})
	case overhop.TPing:
		return overhop.AppendPong(nil, e.RID, time.Now())
	case overhop.TCredit:
		if n.sent {
			return ok(nil)
		}
		n.sent = true
		quest, err := overhop.AppendQuest(ok(nil), n.quest(), overhop.MaxFrameLimit)
		if err != nil {
			n.t.Errorf("yardtest: RunHandler: %v", err)
			n.stop()
		}
		return quest
	}
	if err := n.record(e); err != nil {
		n.t.Errorf("yardtest: RunHandler: %v", err)
	}
	return ok(nil)
}

// forever is the lease of the job and the interval of its renewals.
const forever = 1000 * 24 * time.Hour

// quest returns the job as a node sends it.
func (n *handlerNode) quest() *overhop.Quest {
	now := time.Now()
	q := &overhop.Quest{
		JID: n.info.ID, Queue: n.info.Queue, Function: n.info.Function, SID: "yardtest", Fence: n.info.Fence,
		Attempt: uint32(n.info.Attempt), MaxAttempts: uint32(n.info.MaxAttempts), JSON: true, Trace: n.info.Trace,
		Created: n.info.Accepted, RunAt: now, AckBy: now.Add(forever), LeaseUntil: now.Add(forever), Lease: forever, Beat: forever,
		Deadline: n.info.Deadline, Redelivered: n.info.Redelivered,
	}
	params, err := overhop.AppendJSON(nil, n.params)
	if err == nil && n.params.Kind() == overhop.KindMap {
		q.Params = params
	} else { // binary, or no map
		q.Payload = n.params
	}
	return q
}

// record records what the worker reports of the job. The outcome ends the worker. mu is held.
func (n *handlerNode) record(e overhop.Envelope) error {
	switch e.T {
	case overhop.TProgress:
		p, err := overhop.ParseProgress(e.P)
		if err == nil && p.Percent != nil {
			n.progress = append(n.progress, ProgressReport{int(*p.Percent), asJSON(p.Data, p.DataJSON)})
		}
		return err
	case overhop.TLog:
		log, err := overhop.ParseLog(e.P)
		for _, line := range log.Lines {
			n.log = append(n.log, LogLine{line.Level, line.Text})
		}
		return err
	case overhop.TDone:
		n.ended = true
		defer n.stop()
		done, err := overhop.ParseDone(e.P)
		n.result = done.Result
		if done.ResultJSON != nil {
			n.result, err = overhop.FromJSON(done.ResultJSON)
		}
		return err
	case overhop.TFail:
		n.ended = true
		defer n.stop()
		fail, err := overhop.ParseFail(e.P)
		n.failure = &fail
		return err
	}
	return nil
}

// asJSON returns a value that a worker has sent, in one of two forms, as JSON.
func asJSON(value overhop.Raw, text []byte) json.RawMessage {
	if text == nil && len(value) > 0 && !value.IsNil() {
		return overhop.AppendLossyJSON(nil, value)
	}
	return text
}
