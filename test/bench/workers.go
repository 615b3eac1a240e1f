package bench

import (
	"context"
	"fmt"
	"sync"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// workerPlan is the number of workers, spread over the nodes, and the credits of each.
type workerPlan struct{ workers, credits int }

func (s workerPlan) capacity() int { return s.workers * s.credits }

// The capacity of the no-op workers: enough for a full pipeline, with no more
// connections than a node with a few busy workers has.
const (
	connections = 2 // at each node
	credits     = 1000
)

// workerSet is a set of Overhop workers that complete every job of a load at once.
type workerSet struct {
	load *load

	running sync.WaitGroup
	stop    context.CancelFunc
}

// startWorkers connects workers and subscribes them to a queue.
func startWorkers(t *task, nodes []*procs.Node, s workerPlan, queue string, l *load) *workerSet {
	running, stop := context.WithCancel(t)
	h := &workerSet{load: l, stop: stop}
	t.cleanup(h.close)
	for i := range s.workers {
		w := must.Get(dialWorker(t, nodes[i%len(nodes)].Edge))
		w.out, _ = overhop.AppendFields(w.out, overhop.TSubscribe, ridSubscribe, overhop.Fields{"q": queue, "credits": s.credits})
		h.running.Go(func() {
			h.work(running, &worker{wire: w, load: l, active: make(map[string]activeJob)})
		})
	}
	return h
}

func (h *workerSet) close() {
	h.stop()
	h.running.Wait()
}

// work runs one worker until ctx or its connection ends.
func (h *workerSet) work(ctx context.Context, w *worker) {
	defer context.AfterFunc(ctx, func() { w.nc.Close() })()
	defer w.nc.Close()
	for {
		err := w.flush()
		for more := true; err == nil && more; more = w.in.Ready() {
			err = w.handleNext()
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			h.load.fail(fmt.Errorf("worker: %w", err))
			return
		}
	}
}

// worker is one worker. The rid of a DONE is its job's id, so that the answer identifies
// the job.
type worker struct {
	*wire
	load   *load
	active map[string]activeJob // jobs whose outcome is not committed
}

// activeJob is what a DONE needs to know about a job.
type activeJob struct {
	due   int64
	token [overhop.TokenLen]byte
}

const (
	ridSubscribe = "subscribe"
	ridAck       = "ack"
)

// handleNext reads and handles one message.
func (w *worker) handleNext() error {
	e, err := w.next()
	switch {
	case err != nil:
		return err
	case e.T == overhop.TQuest:
		return w.run(e.P)
	case e.T == overhop.TErr && (e.RID == overhop.PushRID || e.RID == ridSubscribe || e.RID == ridAck && !w.load.mayRerun()):
		return remoteError(e.P)
	case e.RID == overhop.PushRID, e.RID == ridSubscribe, e.RID == ridAck:
		return nil
	}
	return w.handleDone(e)
}

// run handles a QUEST: it answers with an ACK and a DONE at once.
func (w *worker) run(quest overhop.Raw) error {
	jid, _ := quest.Get("jid").Str()
	token, _ := quest.Get("tok").Bin()
	due, ok := quest.Get("job_payload").Get("due").Int()
	if !ok || len(token) != overhop.TokenLen {
		return fmt.Errorf("got job %q, which is not part of this load", jid)
	}
	w.load.started(due)
	o := activeJob{due, [overhop.TokenLen]byte(token)}
	w.active[jid] = o
	b, mark := overhop.Begin(w.out)
	b = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(b, 2), "jid"), jid)
	b = overhop.AppendBin(overhop.AppendStr(b, "tok"), token)
	w.out, _ = overhop.End(b, mark, overhop.TAck, ridAck)
	w.done(jid, &o)
	return nil
}

// done appends the DONE of a successful job, which returns its credit.
func (w *worker) done(jid string, o *activeJob) {
	b, mark := overhop.Begin(w.out)
	b = overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(b, 3), "credits"), 1)
	b = overhop.AppendStr(overhop.AppendStr(b, "jid"), jid)
	b = overhop.AppendBin(overhop.AppendStr(b, "tok"), o.token[:])
	w.out, _ = overhop.End(b, mark, overhop.TDone, jid)
}

// handleDone handles the answer to a DONE. If jobs may run more than once, an outcome
// that could not be committed is sent again, and a lost lease is ignored, because
// another worker reports the outcome.
func (w *worker) handleDone(e overhop.Envelope) error {
	o, found := w.active[e.RID]
	if !found {
		return fmt.Errorf("answer to unknown request %q", e.RID)
	}
	if e.T == overhop.TOK {
		delete(w.active, e.RID)
		w.load.ended(o.due)
		return nil
	}
	err := remoteError(e.P)
	switch code := overhop.ErrorCode(err); {
	case code == overhop.CodeUnavailable && w.load.mayRerun():
		w.done(e.RID, &o)
	case code == overhop.CodeLeaseLost && w.load.mayRerun():
		delete(w.active, e.RID)
	default:
		return fmt.Errorf("outcome of job %s: %w", e.RID, err)
	}
	return nil
}
