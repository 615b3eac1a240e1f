package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"yardmaster/job"

	"github.com/nats-io/nats.go"
)

// NoExpectation appends whatever the stream's last sequence is.
const NoExpectation = ^uint64(0)

const appendAnswer = 3 * time.Second

// Tale is one message of history: a run of numbered entries that were
// committed together, one per line. A dead letter is a tale of one.
type Tale struct {
	Subject string            // [SubjectHistory], [SubjectResults] or a [DLQSubject]
	ID      string            // drops a second copy within 30 s; "" drops none
	First   uint64            // number of the first entry; 0: not numbered
	Count   uint64            // how many entries
	Header  map[string]string // Yard-* headers beside those two
	Body    []byte

	Seq    uint64    // where it is stored; set by reads
	Stored time.Time // set by reads
}

// Last is the number of the tale's last entry.
func (t *Tale) Last() uint64 { return t.First + max(t.Count, 1) - 1 }

// WrongLastError: somebody else has written to the stream meanwhile.
type WrongLastError struct{ Stream string }

func (e *WrongLastError) Error() string {
	return "stream " + e.Stream + " does not end where the writer thinks"
}

// AppendAsync stores a tale if the stream still ends at expectLast, 0 for one
// that was never written. The next may be sent when this one is stored: a
// sequence does not tell whose message is there. done is called once and must not block; its error is a
// [*WrongLastError], a [*job.UnavailableError] if the tale is not stored, which
// is [ErrFull] if there is no room for it, or [ErrUnknown]: then [Cluster.LastTold] says what the stream holds.
func (c *Cluster) AppendAsync(stream string, t Tale, expectLast uint64, done func(seq uint64, err error)) {
	m := &nats.Msg{Subject: t.Subject, Data: t.Body, Header: nats.Header{headerExpectName: []string{stream}}}
	for k, v := range t.Header {
		m.Header[k] = []string{v}
	}
	if t.ID != "" {
		m.Header[HeaderMsgID] = []string{t.ID}
	}
	if t.First > 0 {
		m.Header[HeaderFirst] = []string{strconv.FormatUint(t.First, 10)}
		m.Header[HeaderCount] = []string{strconv.FormatUint(t.Count, 10)}
	}
	if expectLast != NoExpectation {
		m.Header[headerExpectLast] = []string{strconv.FormatUint(expectLast, 10)}
	}
	reply, token := c.history.expect(&appending{stream, done}, time.Now().Add(appendAnswer), false)
	m.Reply = reply
	if err := c.history.nc.PublishMsg(m); err != nil && c.history.forget(token) {
		done(0, sendError(err))
	}
}

type appending struct {
	stream string
	done   func(uint64, error)
}

func (a *appending) heard(m *nats.Msg) bool {
	a.done(a.read(m))
	return true
}

func (a *appending) read(m *nats.Msg) (uint64, error) {
	if m == nil {
		return 0, fmt.Errorf("append to %s: no answer: %w", a.stream, ErrUnknown)
	}
	if isNoResponders(m) {
		return 0, &job.UnavailableError{Reason: a.stream + " has no leader", RetryAfter: time.Second}
	}
	ack, err := parsePubAck(m.Data)
	if err == nil {
		return ack.seq, nil
	}
	var refusal *apiError
	if !errors.As(err, &refusal) {
		return 0, err
	}
	switch {
	case refusal.ErrCode == codeWrongLast, refusal.ErrCode == codeWrongLastUnknown:
		return 0, &WrongLastError{a.stream}
	case refusal.kind() == refusalTooLarge:
		return 0, fmt.Errorf("append to %s: %w", a.stream, job.ErrTooLarge)
	case refusal.kind() == refusalFinal:
		return 0, fmt.Errorf("append to %s: %w", a.stream, refusal)
	}
	later := &job.UnavailableError{Reason: refusal.Description, RetryAfter: refusal.delay()}
	if refusal.full() {
		return 0, fmt.Errorf("append to %s: %w: %w", a.stream, ErrFull, later)
	}
	return 0, later
}

// Append is [Cluster.AppendAsync] for one who waits.
func (c *Cluster) Append(ctx context.Context, stream string, t Tale, expectLast uint64) (uint64, error) {
	type end struct {
		seq uint64
		err error
	}
	ended := make(chan end, 1)
	c.AppendAsync(stream, t, expectLast, func(seq uint64, err error) { ended <- end{seq, err} })
	select {
	case e := <-ended:
		return e.seq, e.err
	case <-ctx.Done():
		return 0, fmt.Errorf("append to %s: %w: %w", stream, ErrUnknown, ctx.Err())
	}
}

// LastTold asks the stream's leader for its last sequence and the number of
// the last entry told there; 0 and 0 for a stream that was never written.
func (c *Cluster) LastTold(ctx context.Context, stream string) (seq, number uint64, err error) {
	subject := SubjectHistory
	switch stream {
	case StreamResults:
		subject = SubjectResults
	case StreamDLQ:
		subject = subjectDLQ + ".>"
	}
	s, err := c.leaderOne(ctx, stream, getRequest{LastFor: subject})
	if err != nil && !errors.Is(err, ErrNotStored) {
		return 0, 0, fmt.Errorf("ask where %s ends: %w", stream, err)
	}
	if t := tale(&s); err == nil && t.First > 0 {
		number = t.Last()
	}
	if err == nil && stream != StreamDLQ {
		return s.seq, number, nil
	}
	// Everything may have grown old, or the last dead letter been taken out:
	// the sequence goes on all the same.
	info, err := c.streamInfo(ctx, stream)
	if err != nil {
		return 0, 0, err
	}
	return info.State.LastSeq, number, nil
}

func tale(s *stored) Tale {
	t := Tale{Subject: s.subject, ID: s.header.Get(HeaderMsgID), Seq: s.seq, Stored: s.time, Body: s.data, Count: 1}
	if first, err := strconv.ParseUint(s.header.Get(HeaderFirst), 10, 64); err == nil {
		t.First = first
	}
	if count, err := strconv.ParseUint(s.header.Get(HeaderCount), 10, 64); err == nil {
		t.Count = count
	}
	for k, v := range s.header {
		if len(k) > 5 && k[:5] == "Yard-" && k != HeaderFirst && k != HeaderCount && len(v) > 0 {
			if t.Header == nil {
				t.Header = map[string]string{}
			}
			t.Header[k] = v[0]
		}
	}
	return t
}

// ReadTale reads one tale by its sequence.
func (c *Cluster) ReadTale(ctx context.Context, stream string, seq uint64) (Tale, error) {
	s, err := c.load(ctx, stream, getRequest{Seq: seq})
	if err != nil {
		return Tale{}, err
	}
	return tale(&s), nil
}

// ReadHistory reads up to limit tales of events from a sequence on. Older ones
// may have been dropped: the first may come later than asked. None: there are
// no more yet.
func (c *Cluster) ReadHistory(ctx context.Context, from uint64, limit int) ([]Tale, error) {
	return c.readTales(ctx, StreamEvents, getRequest{Seq: max(from, 1), Batch: limit})
}

// ReadHistorySince is [Cluster.ReadHistory] from what was stored at a time or
// later.
func (c *Cluster) ReadHistorySince(ctx context.Context, since time.Time, limit int) ([]Tale, error) {
	return c.readTales(ctx, StreamEvents, getRequest{Since: &since, Batch: limit})
}

func (c *Cluster) readTales(ctx context.Context, stream string, req getRequest) ([]Tale, error) {
	req.Batch = min(max(req.Batch, 1), maxRead)
	if req.MaxBytes == 0 {
		req.MaxBytes = maxReadBytes
	}
	ctx, cancel := c.patience(ctx, loadPatience)
	defer cancel()
	for {
		got, err := c.directBatch(ctx, stream, req)
		switch {
		case err == nil:
			tales := make([]Tale, len(got))
			for i := range got {
				tales[i] = tale(&got[i])
			}
			return tales, nil
		case errors.Is(err, errUnknownHere):
			return nil, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("read %s: %w", stream, ctx.Err())
		case errors.Is(err, errNoResponders):
			pause(ctx, replicaAnswer)
		}
	}
}

// FindTale finds the tale that holds an entry's number by halving. It is
// [ErrNotStored] when the number has been dropped or not been told yet.
func (c *Cluster) FindTale(ctx context.Context, stream string, number uint64) (Tale, error) {
	info, err := c.streamInfo(ctx, stream)
	if err != nil {
		return Tale{}, err
	}
	low, high := info.State.FirstSeq, info.State.LastSeq
	for low <= high && high > 0 {
		middle := low + (high-low)/2
		t, err := c.ReadTale(ctx, stream, middle)
		switch {
		case err != nil:
			return Tale{}, err
		case number < t.First:
			high = middle - 1
		case number > t.Last():
			low = middle + 1
		default:
			return t, nil
		}
	}
	return Tale{}, fmt.Errorf("%s holds no entry %d: %w", stream, number, ErrNotStored)
}

// Watched tells that somebody listens to such events now.
func (c *Cluster) Watched(event, queue string) bool {
	acc, err := c.srv.LookupAccount(account)
	return err == nil && acc.SubscriptionInterest(LiveSubject(event, queue))
}

// Live publishes one event to whoever watches it now. It is kept nowhere.
func (c *Cluster) Live(event, queue string, line []byte) error {
	return c.history.nc.Publish(LiveSubject(event, queue), line)
}
