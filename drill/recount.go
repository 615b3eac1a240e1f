package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"yardmaster/cluster"
	"yardmaster/internal/recount"
	"yardmaster/job"
)

// Recount reads the stream of events from its beginning, as any NATS program
// may, and folds it by the contract's text. It returns when every node that
// runs shows a snapshot that agrees. An event that is missing, told twice, or
// could not follow those before it is an error at once.
func (y *Yard) Recount(ctx context.Context) (*recount.Book, error) {
	nc, err := nats.Connect(y.URLs(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("connect to the yard: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, cluster.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	r := reader{stream: stream, book: recount.New()}
	for _, n := range y.Up() {
		err := until(ctx, n.Name+" shows what history tells", func() error {
			var shows json.RawMessage
			if err := n.Ask(ctx, cluster.SubjectSnapshot, struct{}{}, &shows); err != nil {
				return err
			}
			if err := r.readOn(ctx); err != nil || r.wrong != nil {
				return err
			}
			return r.book.Agrees(shows)
		})
		if err := errors.Join(r.wrong, err); err != nil {
			return r.book, err
		}
	}
	return r.book, nil
}

// reader follows the stream of events message by message.
type reader struct {
	stream jetstream.Stream
	read   uint64 // messages
	book   *recount.Book
	wrong  error // what history should never have said
}

// readOn folds what history has grown by. Its error is of reading, which may
// be repeated: a replica that answers may be behind the leader.
func (r *reader) readOn(ctx context.Context) error {
	info, err := r.stream.Info(ctx)
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	if r.read >= info.State.LastSeq {
		return nil
	}
	consumer, err := r.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.read + 1})
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	defer messages.Stop()
	for r.read < info.State.LastSeq && r.wrong == nil {
		// A consumer whose server has lost its place may be silent for ever.
		m, err := messages.Next(jetstream.NextMaxWait(nextPatience))
		if err != nil {
			return fmt.Errorf("read message %d of history: %w", r.read+1, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read message %d of history: %w", r.read+1, err)
		}
		if meta.Sequence.Stream != r.read+1 {
			r.wrong = fmt.Errorf("message %d of history follows message %d", meta.Sequence.Stream, r.read)
			break
		}
		r.read++
		for line := range bytes.SplitSeq(bytes.TrimSpace(m.Data()), []byte("\n")) {
			if r.wrong = r.take(line); r.wrong != nil {
				break
			}
		}
	}
	return nil
}

// nextPatience is how long the next message may take, until history is asked for
// again.
const nextPatience = 5 * time.Second

// take folds one line. Whatever a run's events say, they say it in the name of
// whoever holds the authority then.
func (r *reader) take(line []byte) error {
	if err := r.book.Line(line); err != nil {
		return err
	}
	var said struct{ Event, Owner string }
	if err := json.Unmarshal(line, &said); err != nil {
		return fmt.Errorf("history says %q: %w", line, err)
	}
	if strings.HasPrefix(said.Event, "run.") && said.Owner != r.book.Owner() {
		return fmt.Errorf("%s holds the authority while history says %s", r.book.Owner(), line)
	}
	return nil
}

// dispatches is what history tells of one job's.
type dispatches struct {
	n    int // the highest number
	seen int // how many there are
	last string
}

// RequireSameEnds compares what history tells of each load's jobs with what a
// node shows of it: how it ended, and how many dispatches it took. It says of
// how many jobs.
func (y *Yard) RequireSameEnds(ctx context.Context, book *recount.Book, loads ...*Load) (int, error) {
	told := make(map[job.ID]dispatches)
	book.Each(func(request, state string) {
		name, number, _ := strings.Cut(request, "#")
		id, err := job.ParseID(name)
		n, notANumber := strconv.Atoi(number)
		if err != nil || notANumber != nil {
			return // a caller's own
		}
		d := told[id]
		if d.seen++; n > d.n {
			d.n, d.last = n, state
		}
		told[id] = d
	})
	c, err := cluster.Dial(ctx, y.Up()[0].NATS, cluster.DialOptions{Name: "drill"})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ids := make(chan job.ID)
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			for id := range ids {
				errs[i] = errors.Join(errs[i], sameEnd(ctx, c, id, told[id]))
			}
		})
	}
	compared := 0
	var unlisted error
	for _, l := range loads {
		jobs, err := l.ids()
		unlisted = errors.Join(unlisted, err)
		for id := range jobs {
			ids <- id
			compared++
		}
	}
	close(ids)
	all.Wait()
	return compared, errors.Join(append(errs, unlisted)...)
}

func sameEnd(ctx context.Context, c *cluster.Client, id job.ID, told dispatches) error {
	raw, err := c.Request(ctx, cluster.SubjectAPI+".job.show", fmt.Appendf(nil, `{"id":%q}`, id))
	if err != nil {
		return fmt.Errorf("show %s: %w", id, err)
	}
	var shown struct {
		State      string
		Dispatches int
	}
	if err := json.Unmarshal(raw, &shown); err != nil {
		return err
	}
	want := map[string]string{recount.Delivered: "completed", recount.Failed: "failed"}[told.last]
	if told.n == 0 {
		want = "failed" // cancelled before it was due
	}
	if shown.State != want || shown.Dispatches != told.n || told.seen != told.n {
		return fmt.Errorf("job %s is %s after %d dispatches; history tells of %d, the last one of which is number %d and %s",
			id, shown.State, shown.Dispatches, told.seen, told.n, told.last)
	}
	return nil
}

// RequireSameLedger waits until all nodes that run stand at the same index,
// and requires that their ledgers are the same to the byte there.
func (y *Yard) RequireSameLedger(ctx context.Context) (index uint64, err error) {
	type proof struct {
		Index uint64
		Hash  string
	}
	var differ error
	err = until(ctx, "all nodes stand at one index", func() error {
		var first proof
		for i, n := range y.Up() {
			var p proof
			if err := n.Ask(ctx, cluster.SubjectAPI+".ledger.hash", struct{}{}, &p); err != nil {
				return err
			}
			switch {
			case i == 0:
				first, index = p, p.Index
			case p.Index != first.Index:
				return fmt.Errorf("%s stands at %d, another at %d", n.Name, p.Index, first.Index)
			case p != first:
				differ = fmt.Errorf("at index %d %s has the hash %s, another %s", p.Index, n.Name, p.Hash, first.Hash)
				return nil
			}
		}
		return nil
	})
	return index, errors.Join(err, differ)
}
