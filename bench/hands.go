package bench

import (
	"context"
	"fmt"
	"sync"

	"yardmaster/drill/yard"
	"yardmaster/edge/overhop"
)

// staff is how many workers there are, spread over the nodes in turn, and the
// credits of each.
type staff struct{ workers, credits int }

func (s staff) room() int { return s.workers * s.credits }

// Room of the no-op workers: enough for a full pipeline, and no more
// connections than a node with a few busy workers has.
const (
	connections = 2 // at each node
	credits     = 1000
)

// hands are Overhop workers that end every job of a load at once.
type hands struct {
	load *load

	running sync.WaitGroup
	stop    context.CancelFunc
}

// openHands connects workers and subscribes them to a queue.
func openHands(ctx context.Context, nodes []*yard.Node, s staff, queue string, l *load) (*hands, error) {
	running, stop := context.WithCancel(ctx)
	h := &hands{load: l, stop: stop}
	for i := range s.workers {
		n := nodes[i%len(nodes)]
		w, err := dialWorker(ctx, n.Edge)
		if err != nil {
			h.close()
			return nil, fmt.Errorf("worker at %s: %w", n.Name, err)
		}
		w.out, _ = overhop.AppendFields(w.out, overhop.TSubscribe, ridSubscribe, overhop.Fields{"q": queue, "credits": s.credits})
		h.running.Go(func() {
			h.work(running, &hand{wire: w, load: l, held: make(map[string]order)})
		})
	}
	return h, nil
}

func (h *hands) close() {
	h.stop()
	h.running.Wait()
}

// work is one worker's life.
func (h *hands) work(ctx context.Context, w *hand) {
	defer context.AfterFunc(ctx, func() { w.nc.Close() })()
	defer w.nc.Close()
	for {
		err := w.flush()
		for more := true; err == nil && more; more = w.in.Ready() {
			err = w.turn()
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

// hand is one worker. A DONE's rid is its job's id, so that the answer says
// which job it is about.
type hand struct {
	*wire
	load *load
	held map[string]order // jobs whose end is not committed
}

// order is a job in hand.
type order struct {
	due   int64
	token [overhop.TokenLen]byte
}

const (
	ridSubscribe = "subscribe"
	ridAck       = "ack"
)

// turn handles one message.
func (w *hand) turn() error {
	e, err := w.next()
	switch {
	case err != nil:
		return err
	case e.T == overhop.TQuest:
		return w.run(e.P)
	case e.T == overhop.TErr && (e.RID == overhop.PushRID || e.RID == ridSubscribe || e.RID == ridAck && !w.load.mayRunAgain()):
		return remoteError(e.P)
	case e.RID == overhop.PushRID, e.RID == ridSubscribe, e.RID == ridAck:
		return nil
	}
	return w.told(e)
}

// run is the handler that does nothing.
func (w *hand) run(quest overhop.Raw) error {
	jid, _ := quest.Get("jid").Str()
	token, _ := quest.Get("tok").Bin()
	due, ours := quest.Get("job_payload").Get("due").Int()
	if !ours || len(token) != overhop.TokenLen {
		return fmt.Errorf("it got job %q, which is none of this load", jid)
	}
	w.load.started(due)
	o := order{due, [overhop.TokenLen]byte(token)}
	w.held[jid] = o
	b, mark := overhop.Begin(w.out)
	b = overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(b, 2), "jid"), jid)
	b = overhop.AppendBin(overhop.AppendStr(b, "tok"), token)
	w.out, _ = overhop.End(b, mark, overhop.TAck, ridAck)
	w.done(jid, &o)
	return nil
}

// done ends a job well, and gives its credit back.
func (w *hand) done(jid string, o *order) {
	b, mark := overhop.Begin(w.out)
	b = overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(b, 3), "credits"), 1)
	b = overhop.AppendStr(overhop.AppendStr(b, "jid"), jid)
	b = overhop.AppendBin(overhop.AppendStr(b, "tok"), o.token[:])
	w.out, _ = overhop.End(b, mark, overhop.TDone, jid)
}

// told hears what became of a DONE. Where a job may run more than once, an end
// that could not be committed yet is told again, and one that came too late is
// another worker's to tell.
func (w *hand) told(e overhop.Envelope) error {
	o, asked := w.held[e.RID]
	if !asked {
		return fmt.Errorf("answer to %q, which was not asked", e.RID)
	}
	if e.T == overhop.TOK {
		delete(w.held, e.RID)
		w.load.ended(o.due)
		return nil
	}
	err := remoteError(e.P)
	switch code := overhop.ErrorCode(err); {
	case code == overhop.CodeUnavailable && w.load.mayRunAgain():
		w.done(e.RID, &o)
	case code == overhop.CodeLeaseLost && w.load.mayRunAgain():
		delete(w.held, e.RID)
	default:
		return fmt.Errorf("end of job %s: %w", e.RID, err)
	}
	return nil
}
