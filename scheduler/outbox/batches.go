package outbox

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
)

// nextHistory returns a batch of the events after a number.
func (o *Outbox) nextHistory(_ context.Context, after uint64) (Batch, error) {
	type numbered struct {
		number uint64
		at     time.Time
		event  *ledger.Event // never changed once it is in the outbox
	}
	var events []numbered
	var lanes []ledger.LaneCursor
	o.cfg.Ledger.View(func(l *ledger.Ledger) {
		if waiting := l.LastEvent() - min(after, l.LastEvent()); waiting > 0 {
			events = make([]numbered, 0, min(waiting, maxEvents+1))
		}
		l.EventsAfter(after, func(number uint64, at time.Time, e *ledger.Event) bool {
			events = append(events, numbered{number, at, e})
			return len(events) <= maxEvents
		})
		lanes = l.Lanes()
	})
	if len(events) == 0 {
		return Batch{}, nil
	}
	batch := Batch{First: events[0].number, Header: map[string]string{"Yard-Lanes": laneCursors(lanes)}}
	enc := history.NewEncoder(len(events), events[0].number, events[0].at)
	for _, e := range events {
		enc.Add(e.number, e.at, e.event)
		batch.Count++
		if e.event.N > 0 && e.event.Kind == ledger.DispatchNotified {
			continue // the next event has its queue in the contract's form: both must be in one message
		}
		batch.More = batch.Count >= maxEvents || enc.Len() >= maxBatchSize-512
		if batch.More {
			break
		}
	}
	batch.Body = enc.Bytes()
	return batch, nil
}

// laneCursors returns the cursors of lanes as text, for example "0@17,1@0".
func laneCursors(lanes []ledger.LaneCursor) string {
	var b strings.Builder
	for i, c := range lanes {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d@%d", i, c.Cursor)
	}
	return b.String()
}

// ResultLine is one line of the result stream. BlobIsMsgpack is the encoding of a
// result that is stored in a blob.
type ResultLine struct {
	ID            job.ID             `json:"id"`
	RequestID     string             `json:"request_id"`
	Queue         string             `json:"queue"`
	Number        uint64             `json:"seq"`
	Result        json.RawMessage    `json:"result,omitempty"`
	ResultMsgpack []byte             `json:"result_msgpack,omitempty"`
	ResultBytes   []byte             `json:"result_bytes,omitempty"` // a result that should be JSON and is not valid
	Blob          *job.Blob          `json:"blob,omitempty"`
	BlobIsMsgpack bool               `json:"blob_is_msgpack,omitempty"`
	Dropped       *job.DroppedResult `json:"result_dropped,omitempty"`
}

// Value returns the result, without its blob.
func (r *ResultLine) Value() job.Value {
	if r.ResultMsgpack != nil || r.BlobIsMsgpack {
		return job.Value{Msgpack: true, Data: r.ResultMsgpack}
	}
	return job.Value{Data: r.Result}
}

// nextResults returns a batch of the results after a number.
func (o *Outbox) nextResults(_ context.Context, after uint64) (Batch, error) {
	var items []ledger.ResultItem
	o.cfg.Ledger.View(func(l *ledger.Ledger) { items = l.ResultsAfter(after) })
	var batch Batch
	for i := range items {
		r := &items[i]
		line := ResultLine{
			ID: r.Job, RequestID: job.RequestID(r.Job, r.N), Queue: r.Queue, Number: r.Number,
			Blob: r.Blob, BlobIsMsgpack: r.Blob != nil && r.Value.Msgpack, Dropped: r.Dropped,
		}
		switch data := r.Value.Data; {
		case len(data) == 0:
		case r.Value.Msgpack:
			line.ResultMsgpack = data
		case json.Valid(data):
			line.Result = data
		default:
			line.ResultBytes = data
		}
		text, err := json.Marshal(line)
		if err != nil {
			return Batch{}, fmt.Errorf("result of job %s: %w", line.ID, err)
		}
		if batch.Count == 0 {
			batch.First = r.Number
		}
		batch.Body = append(append(batch.Body, text...), '\n')
		batch.Count++
		batch.More = batch.Count == maxLines || len(batch.Body) > maxBatchSize
		if batch.More {
			break
		}
	}
	return batch, nil
}

// single returns a publisher's next function, which returns the batch of fn if that has items.
func single(fn func(ctx context.Context, after uint64) (Batch, error)) func(context.Context, uint64) ([]Batch, error) {
	return func(ctx context.Context, after uint64) ([]Batch, error) {
		batch, err := fn(ctx, after)
		if err != nil || batch.Count == 0 {
			return nil, err
		}
		return []Batch{batch}, nil
	}
}

// nextDeadLetters returns the dead letters after a number, at most letterWindow, each a
// batch of its own. It reads the bodies of their jobs at once, and returns an error if it
// cannot read the first one; others that follow one that it cannot read are left for later.
func (o *Outbox) nextDeadLetters(ctx context.Context, after uint64) ([]Batch, error) {
	var items []ledger.DeadLetter
	o.cfg.Ledger.View(func(l *ledger.Ledger) { items = l.DeadLettersAfter(after) })
	more := len(items) > letterWindow
	items = items[:min(len(items), letterWindow)]
	batches, errs := make([]Batch, len(items)), make([]error, len(items))
	var reads sync.WaitGroup
	for i := range items {
		reads.Go(func() { batches[i], errs[i] = o.deadLetter(ctx, &items[i]) })
	}
	reads.Wait()
	for i, err := range errs {
		if err != nil && i == 0 {
			return nil, err
		}
		if err != nil {
			return batches[:i], nil
		}
		batches[i].More = more
	}
	return batches, nil
}

// deadLetter returns the message of a dead letter, with the job's body if it can be read.
func (o *Outbox) deadLetter(ctx context.Context, item *ledger.DeadLetter) (Batch, error) {
	letter := api.DeadLetterMessage{
		ID: item.Job.String(), Queue: item.Queue, Function: item.Function, Reason: item.Reason, Error: validFault(item.Fault),
		Attempts: item.Attempts, Accepted: item.Accepted, Failed: item.At, Lane: item.Position.Lane, Seq: item.Position.Seq, Index: item.Position.Index,
	}
	body, err := o.cfg.LoadBody(ctx, item.Position, item.Job)
	switch {
	case err != nil:
		return Batch{}, fmt.Errorf("body of dead job %s: %w", letter.ID, err)
	case json.Valid(body):
		letter.Job = body
	default:
		letter.Record = body
	}
	if f := item.Fault; f != nil && f.IsCut() { // if the whole error cannot be loaded, the letter keeps the part
		if whole, err := o.cfg.LoadError(ctx, item.Job, item.N); err == nil {
			letter.Error = withDetails(f, &whole.Error)
		}
	}
	text, err := json.Marshal(letter)
	if err != nil {
		return Batch{}, fmt.Errorf("dead letter of job %s: %w", letter.ID, err)
	}
	return Batch{
		Queue: item.Queue, BlobOwner: item.BlobOwner, ID: fmt.Sprintf("dead/%s", job.RequestID(item.Job, item.N)), First: item.Number, Count: 1, Body: text,
	}, nil
}

// withDetails returns the fault f of a settlement with the message and the details of the whole error
// that was reported. It keeps the type of f, which may be the reason why the job was stopped.
func withDetails(f, whole *job.Fault) *job.Fault {
	return validFault(&job.Fault{Message: whole.Message, Type: f.Type, Code: f.Code, Details: whole.Details})
}

// validFault returns f, with its details quoted as a string if they are not valid
// JSON.
func validFault(f *job.Fault) *job.Fault {
	if f == nil || len(f.Details) == 0 || json.Valid(f.Details) {
		return f
	}
	quoted := *f
	quoted.Details, _ = json.Marshal(string(f.Details))
	return &quoted
}
