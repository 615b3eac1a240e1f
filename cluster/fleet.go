package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"yardmaster/cluster/wire"
	"yardmaster/job"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
)

// The verbs of yard.node.<node>.<verb>. Others are raw requests.
const (
	verbAssign = "assign"
	verbReport = "report"
	verbBeat   = "beat"
	verbRecall = "recall"
	verbNotice = "notice"
)

// How long an answer is waited for. A report's comes after a commit.
const (
	assignAnswer   = 2 * time.Second
	reportAnswer   = 5 * time.Second
	beatAnswer     = time.Second
	requestAnswer  = 30 * time.Second // of a raw request whose context has no deadline
	requestsAtOnce = 64
)

// Errors of a message to a node.
var (
	ErrNoNode   = errors.New("node does not listen")        // known at once; it was not delivered
	ErrNoAnswer = errors.New("node did not answer in time") // it may have been
)

// Fleet is the nodes talking to each other. Messages to one node for one verb
// arrive in the order in which they were sent over a connection that lives.
type Fleet struct {
	c *Cluster
}

// Fleet is the way to other nodes, and to this one.
func (c *Cluster) Fleet() *Fleet { return &Fleet{c} }

// AssignAsync sends a batch of assignments. done gets one answer per
// assignment, in order, or [ErrNoNode] or [ErrNoAnswer]; it must not block.
func (f *Fleet) AssignAsync(node string, b job.Batch, done func([]job.Answer, error)) {
	call(f, node, verbAssign, wire.AppendBatch(nil, &b), assignAnswer, func(data []byte) ([]job.Answer, error) {
		answers, err := wire.ParseAnswers(data)
		if err == nil && len(answers) != len(b.Assignments) {
			return nil, fmt.Errorf("node %s answers %d of %d assignments", node, len(answers), len(b.Assignments))
		}
		return answers, err
	}, done)
}

// Assign is [Fleet.AssignAsync] for one who waits.
func (f *Fleet) Assign(ctx context.Context, node string, b job.Batch) ([]job.Answer, error) {
	return await(ctx, func(done func([]job.Answer, error)) { f.AssignAsync(node, b, done) })
}

// ReportAsync sends a report to the authority's node.
func (f *Fleet) ReportAsync(node string, r job.Report, done func(job.ReportAck, error)) {
	call(f, node, verbReport, wire.AppendReport(nil, &r), reportAnswer, wire.ParseReportAck, done)
}

// Report is [Fleet.ReportAsync] for one who waits.
func (f *Fleet) Report(ctx context.Context, node string, r job.Report) (job.ReportAck, error) {
	return await(ctx, func(done func(job.ReportAck, error)) { f.ReportAsync(node, r, done) })
}

// Beat sends a sign of life to the authority's node.
func (f *Fleet) Beat(ctx context.Context, node string, b job.Beat) (job.BeatAck, error) {
	return await(ctx, func(done func(job.BeatAck, error)) {
		call(f, node, verbBeat, wire.AppendBeat(nil, &b), beatAnswer, wire.ParseBeatAck, done)
	})
}

// Recall tells a node to stop a dispatch. Nothing answers: the dispatch's
// outcome does.
func (f *Fleet) Recall(node string, r job.Recall) error {
	return f.c.fleet.nc.Publish(nodeSubject(node, verbRecall), wire.AppendRecall(nil, &r))
}

// Notify tells the authority's node what was just stored. It may get lost: the
// lanes hold it.
func (f *Fleet) Notify(node string, records []job.Record) error {
	return f.c.fleet.nc.Publish(nodeSubject(node, verbNotice), wire.AppendRecords(nil, records))
}

// Request sends anything else. A handler's error comes back as an [*APIError].
func (f *Fleet) Request(ctx context.Context, node, verb string, payload []byte) ([]byte, error) {
	wait := requestAnswer
	if due, limited := ctx.Deadline(); limited {
		wait = time.Until(due)
	}
	return await(ctx, func(done func([]byte, error)) {
		call(f, node, verb, payload, wait, func(data []byte) ([]byte, error) { return data, nil }, done)
	})
}

// call sends one request and lets done hear of its end.
func call[T any](f *Fleet, node, verb string, payload []byte, wait time.Duration, parse func([]byte) (T, error), done func(T, error)) {
	var none T
	if len(payload) > MaxMessage {
		done(none, fmt.Errorf("message of %d bytes to node %s: %w", len(payload), node, job.ErrTooLarge))
		return
	}
	box := f.c.fleet
	reply, token := box.expect(&calling[T]{node, parse, done}, time.Now().Add(wait), false)
	if err := box.nc.PublishRequest(nodeSubject(node, verb), reply, payload); err != nil && box.forget(token) {
		done(none, fmt.Errorf("%s to node %s: %w", verb, node, err))
	}
}

type calling[T any] struct {
	node  string
	parse func([]byte) (T, error)
	done  func(T, error)
}

func (c *calling[T]) heard(m *nats.Msg) bool {
	v, err := c.read(m)
	c.done(v, err)
	return true
}

func (c *calling[T]) read(m *nats.Msg) (v T, err error) {
	switch {
	case m == nil:
		return v, fmt.Errorf("node %s: %w", c.node, ErrNoAnswer)
	case isNoResponders(m):
		return v, fmt.Errorf("node %s: %w", c.node, ErrNoNode)
	}
	if refusal := errorOf(m); refusal != nil {
		return v, refusal
	}
	return c.parse(m.Data)
}

func await[T any](ctx context.Context, start func(done func(T, error))) (T, error) {
	type end struct {
		v   T
		err error
	}
	ended := make(chan end, 1)
	start(func(v T, err error) { ended <- end{v, err} })
	select {
	case e := <-ended:
		return e.v, e.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// Handlers hear what other nodes say. Each verb has a goroutine of its own on
// which its handler is called in order of arrival, so none may block for long;
// answers may be given later, from anywhere, once. A nil handler does not
// listen: callers get [ErrNoNode].
type Handlers struct {
	Assign func(b job.Batch, reply func([]job.Answer))
	Report func(r job.Report, reply func(job.ReportAck))
	Beat   func(b job.Beat, reply func(job.BeatAck))
	Recall func(r job.Recall)
	Notice func(records []job.Record)
	// Request handlers run side by side, at most 64 of them.
	Request map[string]func(ctx context.Context, payload []byte) ([]byte, error)
}

// Serve listens until ctx ends and the last handler has returned.
func (f *Fleet) Serve(ctx context.Context, h Handlers) error {
	var subs []*nats.Subscription
	var work errgroup.Group
	work.SetLimit(requestsAtOnce)
	listen := func(verb string, handle nats.MsgHandler) error {
		if slices.Contains(nodeVerbs, verb) {
			return fmt.Errorf("verb %s is one that clients say to a node: nodes among themselves need another", verb)
		}
		sub, err := f.c.fleet.nc.Subscribe(nodeSubject(f.c.cfg.Node, verb), handle)
		if err != nil {
			return fmt.Errorf("listen to %s from other nodes: %w", verb, err)
		}
		subs = append(subs, sub)
		return nil
	}
	err := f.listenAll(h, listen)
	for verb, handle := range h.Request {
		if err == nil {
			err = listen(verb, func(m *nats.Msg) {
				work.Go(func() error { f.respond(ctx, m, handle); return nil })
			})
		}
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, settle(subs...), work.Wait())
}

func (f *Fleet) listenAll(h Handlers, listen func(string, nats.MsgHandler) error) error {
	var errs []error
	if h.Assign != nil {
		errs = append(errs, listen(verbAssign, heed(f, wire.ParseBatch, func(b job.Batch, m *nats.Msg) {
			h.Assign(b, func(a []job.Answer) { f.answer(m, wire.AppendAnswers(nil, a)) })
		})))
	}
	if h.Report != nil {
		errs = append(errs, listen(verbReport, heed(f, wire.ParseReport, func(r job.Report, m *nats.Msg) {
			h.Report(r, func(a job.ReportAck) { f.answer(m, wire.AppendReportAck(nil, &a)) })
		})))
	}
	if h.Beat != nil {
		errs = append(errs, listen(verbBeat, heed(f, wire.ParseBeat, func(b job.Beat, m *nats.Msg) {
			h.Beat(b, func(a job.BeatAck) { f.answer(m, wire.AppendBeatAck(nil, &a)) })
		})))
	}
	if h.Recall != nil {
		errs = append(errs, listen(verbRecall, heed(f, wire.ParseRecall, func(r job.Recall, _ *nats.Msg) { h.Recall(r) })))
	}
	if h.Notice != nil {
		errs = append(errs, listen(verbNotice, heed(f, wire.ParseRecords, func(r []job.Record, _ *nats.Msg) { h.Notice(r) })))
	}
	return errors.Join(errs...)
}

// heed reads a message and hands it on. What cannot be read is said to the log
// and, as an error, to the sender.
func heed[T any](f *Fleet, parse func([]byte) (T, error), handle func(T, *nats.Msg)) nats.MsgHandler {
	return func(m *nats.Msg) {
		v, err := parse(m.Data)
		if err != nil {
			f.c.log.Warn("message from another node is not readable", "subject", m.Subject, "bytes", len(m.Data), "error", err)
			if m.Reply != "" {
				f.send(errorReply(m.Reply, f.c.cfg.Node, &APIError{Code: "400", Text: err.Error()}))
			}
			return
		}
		handle(v, m)
	}
}

func (f *Fleet) respond(ctx context.Context, m *nats.Msg, handle func(context.Context, []byte) ([]byte, error)) {
	data, err := handle(ctx, m.Data)
	if err != nil {
		f.send(errorReply(m.Reply, f.c.cfg.Node, RefusalOf(err)))
		return
	}
	f.answer(m, data)
}

func (f *Fleet) answer(m *nats.Msg, data []byte) { f.send(&nats.Msg{Subject: m.Reply, Data: data}) }

// send lets an answer go. If it cannot, the asker's time runs out and it asks
// again; all that is left is to say so.
func (f *Fleet) send(m *nats.Msg) {
	if err := f.c.fleet.nc.PublishMsg(m); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		f.c.log.Warn("answer to another node is not sent", "bytes", len(m.Data), "error", err)
	}
}
