package streams

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrUnknown means that a publish failed although one of its attempts may have
// been stored. Repeating it under the same key is safe.
var ErrUnknown = errors.New("not known whether the job was accepted; repeat it under the same key")

// ErrStorageFull means that a stream, an account or a disk has no space left.
var ErrStorageFull = errors.New("no space is left")

const appendTimeout = 3 * time.Second

// Batch is one message of history: a run of consecutively numbered entries. Events have the
// form that package ledger/history defines, results are one per line. A dead letter is a batch
// of one entry.
type Batch struct {
	Subject string            // [subjects.History], [subjects.Results] or a [subjects.DLQSubject]
	ID      string            // a second batch with this ID within 30 s is dropped; "": no deduplication
	First   uint64            // number of the first entry; 0: the entries are not numbered
	Count   uint64            // number of entries
	Header  map[string]string // Yard-* headers other than First and Count
	Body    []byte

	Seq    uint64    // sequence in the stream; set by reads
	Stored time.Time // set by reads
}

// Last returns the number of the batch's last entry.
func (b *Batch) Last() uint64 { return b.First + max(b.Count, 1) - 1 }

// WrongLastError means that another writer has written to the stream or row.
type WrongLastError struct {
	Stream string

	// unapplied reports that the stream's leader did not compare sequences, because
	// an earlier write of the same subject may not be applied yet. The leader
	// acknowledges a write shortly before it forgets that the write is under way.
	unapplied bool
}

func (e *WrongLastError) Error() string {
	return "stream " + e.Stream + " has another last sequence than the writer expects"
}

// Writer stores history, dead letters, logs and blobs in their streams; package
// lanes stores jobs. Its methods may be called concurrently.
type Writer struct {
	local           *embedded.Server
	bodies, results blobSpace
}

// NewWriter returns a writer over l's connections.
func NewWriter(l *embedded.Server) *Writer {
	return &Writer{local: l, bodies: blobSpace{store: BodyBlobs}, results: blobSpace{store: ResultBlobs}}
}

// AppendAsync sends a batch, which the stream stores only if its last sequence is
// expectLast; 0 stands for a stream that was never written. The caller must not send the
// next batch before this one is stored, because from a sequence alone it could not know
// whose message is stored there; unless all writers store the same messages, as of dead
// letters. done is called once, with the sequence of the stored
// batch or an error, and must not block. The error is a [*WrongLastError]; a
// [*job.UnavailableError] if the batch was not stored, which is also
// [ErrStorageFull] if there is no space; or [ErrUnknown], after which
// [Reader.LastPublished] returns what the stream holds.
func (w *Writer) AppendAsync(stream string, b Batch, expectLast uint64, done func(seq uint64, err error)) {
	m := &nats.Msg{Subject: b.Subject, Data: b.Body, Header: nats.Header{
		subjects.HeaderExpectName: []string{stream}, subjects.HeaderExpectLast: []string{strconv.FormatUint(expectLast, 10)},
	}}
	for name, value := range b.Header {
		m.Header[name] = []string{value}
	}
	if b.ID != "" {
		m.Header[subjects.HeaderMsgID] = []string{b.ID}
	}
	if b.First > 0 {
		m.Header[subjects.HeaderFirst] = []string{strconv.FormatUint(b.First, 10)}
		m.Header[subjects.HeaderCount] = []string{strconv.FormatUint(b.Count, 10)}
	}
	reply, token := w.local.History.Expect(&appendCall{stream, done}, time.Now().Add(appendTimeout), false)
	m.Reply = reply
	if err := w.local.History.Conn.PublishMsg(m); err != nil && w.local.History.Cancel(token) {
		done(0, embedded.PublishError(err))
	}
}

// appendCall handles the acknowledgement of an append.
type appendCall struct {
	stream string
	done   func(uint64, error)
}

// Receive implements [embedded.ReplyHandler].
func (a *appendCall) Receive(m *nats.Msg) bool {
	a.done(a.decode(m))
	return true
}

// decode returns the sequence under which the stream has stored the batch, or why it
// has not. m is the stream's answer, nil if none came in time.
func (a *appendCall) decode(m *nats.Msg) (seq uint64, err error) {
	if m == nil {
		return 0, fmt.Errorf("append to %s: not acknowledged in time: %w", a.stream, ErrUnknown)
	}
	if embedded.IsNoResponders(m) {
		return 0, &job.UnavailableError{Reason: a.stream + " has no leader", RetryAfter: time.Second}
	}
	ack, err := embedded.ParsePubAck(m.Data)
	if err == nil {
		return ack.Seq, nil
	}
	apiErr, refused := errors.AsType[*embedded.APIError](err)
	switch {
	case !refused:
		return 0, err
	case apiErr.ErrCode == embedded.CodeWrongLast, apiErr.ErrCode == embedded.CodeWrongLastUnknown:
		return 0, &WrongLastError{a.stream, apiErr.ErrCode == embedded.CodeWrongLastUnknown}
	case apiErr.Class() == embedded.ClassTooLarge:
		return 0, fmt.Errorf("append to %s: %w", a.stream, job.ErrTooLarge)
	case apiErr.Class() == embedded.ClassFinal:
		return 0, fmt.Errorf("append to %s: %w", a.stream, apiErr)
	}
	if apiErr.StorageFull() {
		return 0, fmt.Errorf("append to %s: %w: %w", a.stream, ErrStorageFull, apiErr.Unavailable())
	}
	return 0, apiErr.Unavailable()
}

// LastPublished returns the last sequence of a stream and the number of the last
// entry published to it, as its leader knows them; 0 and 0 for a stream that was
// never written.
func (r *Reader) LastPublished(ctx context.Context, stream string) (seq, number uint64, err error) {
	subject := subjects.History
	switch stream {
	case subjects.StreamResults:
		subject = subjects.Results
	case subjects.StreamState:
		subject = subjects.State
	case subjects.StreamDLQ:
		subject = subjects.DeadLetters + ".>"
	}
	s, err := r.getFromLeader(ctx, stream, getRequest{LastFor: subject})
	if err != nil && !errors.Is(err, ErrNotStored) {
		return 0, 0, fmt.Errorf("find the end of %s: %w", stream, err)
	}
	if err == nil {
		if b := toBatch(&s); b.First > 0 {
			number = b.Last()
		}
	}
	if err == nil && stream != subjects.StreamDLQ {
		return s.seq, number, nil
	}
	// All messages may have expired, or the last dead letter may have been removed.
	// The stream's last sequence remains.
	if seq, err = r.lastSeq(ctx, stream); err != nil {
		return 0, 0, err
	}
	return seq, number, nil
}

// toBatch converts a stored message. A message without a number of entries has one.
func toBatch(s *storedMsg) Batch {
	b := Batch{Subject: s.subject, ID: s.header.Get(subjects.HeaderMsgID), Seq: s.seq, Stored: s.time, Body: s.data, Count: 1}
	if first, err := strconv.ParseUint(s.header.Get(subjects.HeaderFirst), 10, 64); err == nil {
		b.First = first
	}
	if count, err := strconv.ParseUint(s.header.Get(subjects.HeaderCount), 10, 64); err == nil {
		b.Count = count
	}
	for name, values := range s.header {
		if !strings.HasPrefix(name, "Yard-") || name == subjects.HeaderFirst || name == subjects.HeaderCount || len(values) == 0 {
			continue
		}
		if b.Header == nil {
			b.Header = map[string]string{}
		}
		b.Header[name] = values[0]
	}
	return b
}

// BatchOf returns the batch in a message of a consumer; meta is the message's metadata.
func BatchOf(m jetstream.Msg, meta *jetstream.MsgMetadata) Batch {
	return toBatch(&storedMsg{subject: m.Subject(), seq: meta.Sequence.Stream, time: meta.Timestamp, header: m.Headers(), data: m.Data()})
}

// ReadBatch reads the batch with this sequence.
func (r *Reader) ReadBatch(ctx context.Context, stream string, seq uint64) (Batch, error) {
	s, err := r.load(ctx, stream, getRequest{Seq: seq})
	if err != nil {
		return Batch{}, err
	}
	return toBatch(&s), nil
}

// ReadHistory reads up to limit batches of events that begin at the sequence from
// or, if older ones have expired, later. An empty result means that there are no
// more yet.
func (r *Reader) ReadHistory(ctx context.Context, from uint64, limit int) ([]Batch, error) {
	return r.readBatches(ctx, subjects.StreamEvents, getRequest{Seq: max(from, 1), Batch: limit})
}

// ReadHistorySince is like [Reader.ReadHistory] for batches stored at since or
// later.
func (r *Reader) ReadHistorySince(ctx context.Context, since time.Time, limit int) ([]Batch, error) {
	return r.readBatches(ctx, subjects.StreamEvents, getRequest{Since: &since, Batch: limit})
}

// readBatches reads up to req.Batch messages of a stream from any replica, and
// retries until a replica answers or ctx ends. An empty result means that the replica
// that answered has no such messages.
func (r *Reader) readBatches(ctx context.Context, stream string, req getRequest) ([]Batch, error) {
	req.Batch = min(max(req.Batch, 1), maxRead)
	if req.MaxBytes == 0 {
		req.MaxBytes = maxReadBytes
	}
	ctx, cancel := withTimeout(ctx, loadTimeout)
	defer cancel()
	for {
		messages, err := r.directBatch(ctx, stream, req)
		switch {
		case err == nil:
			batches := make([]Batch, len(messages))
			for i := range messages {
				batches[i] = toBatch(&messages[i])
			}
			return batches, nil
		case errors.Is(err, errNotOnReplica):
			return nil, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("read %s: %w", stream, ctx.Err())
		case errors.Is(err, nats.ErrNoResponders):
			_ = backoff.Sleep(ctx, replicaTimeout)
		}
	}
}

// FindBatch returns the batch that holds the entry with this number. It searches the
// stream's sequences by bisection, which reads a batch in each step. It returns
// [ErrNotStored] if the entry has expired or is not published yet.
func (r *Reader) FindBatch(ctx context.Context, stream string, number uint64) (Batch, error) {
	info, err := Info(ctx, r.local.JS, stream)
	if err != nil {
		return Batch{}, err
	}
	low, high := info.State.FirstSeq, info.State.LastSeq
	for low <= high && high > 0 {
		middle := low + (high-low)/2
		b, err := r.ReadBatch(ctx, stream, middle)
		switch {
		case errors.Is(err, ErrNotStored):
			low = middle + 1 // evicted meanwhile
		case err != nil:
			return Batch{}, err
		case number < b.First:
			high = middle - 1
		case number > b.Last():
			low = middle + 1
		default:
			return b, nil
		}
	}
	return Batch{}, fmt.Errorf("%s holds no entry %d: %w", stream, number, ErrNotStored)
}

// FirstBatch returns the first batch of a stream, or [ErrNotStored].
func (r *Reader) FirstBatch(ctx context.Context, stream string) (Batch, error) {
	batches, err := r.readBatches(ctx, stream, getRequest{Seq: 1, Batch: 1})
	if err == nil && len(batches) == 0 {
		err = fmt.Errorf("%s is empty: %w", stream, ErrNotStored)
	}
	if err != nil {
		return Batch{}, err
	}
	return batches[0], nil
}

// FindLast returns the last batch of a stream that accept reports true for, which must be the case
// for all batches before it. It searches like FindBatch, and returns [ErrNotStored] if accept
// reports true for none.
func (r *Reader) FindLast(ctx context.Context, stream string, accept func(*Batch) bool) (found Batch, err error) {
	info, err := Info(ctx, r.local.JS, stream)
	if err != nil {
		return Batch{}, err
	}
	low, high := info.State.FirstSeq, info.State.LastSeq
	for low <= high && high > 0 {
		middle := low + (high-low)/2
		b, err := r.ReadBatch(ctx, stream, middle)
		switch {
		case errors.Is(err, ErrNotStored):
			low = middle + 1 // evicted meanwhile
		case err != nil:
			return Batch{}, err
		case accept(&b):
			found, low = b, middle+1
		default:
			high = middle - 1
		}
	}
	if found.Seq == 0 {
		return Batch{}, fmt.Errorf("%s: %w", stream, ErrNotStored)
	}
	return found, nil
}

// HasSubscribers reports whether any client subscribes to such live events.
func (w *Writer) HasSubscribers(event, queue string) bool {
	acc, err := w.local.NATS.LookupAccount(embedded.AccountYard)
	return err == nil && acc.SubscriptionInterest(subjects.LiveSubject(event, queue))
}

// PublishLive publishes one event to its current subscribers. It is not stored.
func (w *Writer) PublishLive(event, queue string, line []byte) error {
	return w.local.History.Conn.Publish(subjects.LiveSubject(event, queue), line)
}
