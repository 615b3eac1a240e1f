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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	eventhistory "github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/test/contractcheck"
)

// CheckContract reads the stream of events from the beginning, as any NATS client
// may, and applies each event by the rules of the runtime contract. It returns
// when the snapshot of every running node agrees with the result. An event that is
// missing, duplicated or out of order is an error at once.
func (c *Cluster) CheckContract(ctx context.Context) (*contractcheck.Checker, error) {
	nc, err := nats.Connect(c.URLs(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, subjects.StreamEvents)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	r := eventReader{stream: stream, checker: contractcheck.New()}
	for _, n := range c.Running() {
		err := until(ctx, "the snapshot of "+n.Name+" agrees with history", func() error {
			var snapshot json.RawMessage
			if err := n.Ask(ctx, api.SubjectSnapshot, struct{}{}, &snapshot); err != nil {
				return err
			}
			if err := r.readNext(ctx); err != nil || r.err != nil {
				return err
			}
			return r.checker.CheckSnapshot(snapshot)
		})
		if err := errors.Join(r.err, err); err != nil {
			return r.checker, err
		}
	}
	return r.checker, nil
}

// eventReader reads the stream of events, message by message.
type eventReader struct {
	stream  jetstream.Stream
	read    uint64 // number of messages read
	checker *contractcheck.Checker
	err     error // first violation of the contract
}

// readNext reads and applies the messages that were added since the last call.
// Errors while reading are returned, and the call may be repeated. A violation is
// stored in r.err.
func (r *eventReader) readNext(ctx context.Context) error {
	requests, cancel := context.WithTimeout(ctx, nextTimeout) // their replies may be lost when a leader changes
	defer cancel()
	info, err := r.stream.Info(requests)
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	if r.read >= info.State.LastSeq {
		return nil
	}
	consumer, err := r.stream.OrderedConsumer(requests, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: r.read + 1})
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	defer messages.Stop()
	for r.read < info.State.LastSeq && r.err == nil {
		// A consumer may stay silent forever after its server has failed.
		m, err := messages.Next(jetstream.NextMaxWait(nextTimeout))
		if err != nil {
			return fmt.Errorf("read message %d of history: %w", r.read+1, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return fmt.Errorf("read message %d of history: %w", r.read+1, err)
		}
		if meta.Sequence.Stream != r.read+1 {
			r.err = fmt.Errorf("message %d of history follows message %d", meta.Sequence.Stream, r.read)
			break
		}
		r.read++
		lines, err := eventhistory.Expand(m.Data())
		if err != nil {
			r.err = fmt.Errorf("message %d: %w", r.read, err)
			break
		}
		for line := range bytes.SplitSeq(bytes.TrimSpace(lines), []byte("\n")) {
			if r.err = r.apply(line); r.err != nil {
				break
			}
		}
	}
	return nil
}

// nextTimeout limits the wait for the next message. Afterwards reading starts again
// with a new consumer.
const nextTimeout = 5 * time.Second

// apply applies one event. The owner in an event of a run must be the node that
// holds the authority at that point.
func (r *eventReader) apply(line []byte) error {
	if err := r.checker.Apply(line); err != nil {
		return err
	}
	var event struct{ Event, Owner string }
	if err := json.Unmarshal(line, &event); err != nil {
		return fmt.Errorf("malformed line of history %q: %w", line, err)
	}
	if strings.HasPrefix(event.Event, "run.") && event.Owner != r.checker.Owner() {
		return fmt.Errorf("%s holds the authority at this event: %s", r.checker.Owner(), line)
	}
	return nil
}

// dispatchHistory summarizes the dispatches of one job in history.
type dispatchHistory struct {
	n    int    // highest number
	seen int    // how many there are
	last string // state of the dispatch with the highest number
}

// RequireSameOutcomes compares how each job of the loads ended, and after how many
// dispatches, in history and on a node. It returns the number of jobs compared.
func (c *Cluster) RequireSameOutcomes(ctx context.Context, checker *contractcheck.Checker, loads ...*Load) (int, error) {
	dispatches := make(map[job.ID]dispatchHistory)
	checker.Each(func(request, state string) {
		name, number, _ := strings.Cut(request, "#")
		id, err := job.ParseID(name)
		n, notANumber := strconv.Atoi(number)
		if err != nil || notANumber != nil {
			return // not a job's dispatch: a request id chosen by a caller
		}
		d := dispatches[id]
		if d.seen++; n > d.n {
			d.n, d.last = n, state
		}
		dispatches[id] = d
	})
	client, err := cluster.Dial(ctx, c.Running()[0].URL(), cluster.DialOptions{Name: "drill"})
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ids := make(chan job.ID)
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			for id := range ids {
				errs[i] = errors.Join(errs[i], sameOutcome(ctx, client, id, dispatches[id]))
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

// sameOutcome compares one job on a node with its dispatches in history.
func sameOutcome(ctx context.Context, c *cluster.Client, id job.ID, want dispatchHistory) error {
	raw, err := c.Request(ctx, api.SubjectAPI+".job.show", fmt.Appendf(nil, `{"id":%q}`, id))
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
	state := map[string]string{contractcheck.Delivered: "completed", contractcheck.Failed: "failed"}[want.last]
	if want.n == 0 || state == "failed" && shown.State == "cancelled" {
		state = "cancelled" // before it was due if it has no dispatch
	}
	if shown.State != state || shown.Dispatches != want.n || want.seen != want.n {
		return fmt.Errorf("job %s is %s after %d dispatches; history has %d dispatches, the last of them number %d and %s",
			id, shown.State, shown.Dispatches, want.seen, want.n, want.last)
	}
	return nil
}

// RequireSameLedger waits until the ledgers of all running nodes are at the same
// index, and requires that their hashes are equal. It returns the index.
func (c *Cluster) RequireSameLedger(ctx context.Context) (index uint64, err error) {
	type ledgerHash struct {
		Index uint64
		Hash  string
	}
	var differ error
	err = until(ctx, "the ledgers of all nodes are at the same index", func() error {
		var first ledgerHash
		for i, n := range c.Running() {
			var l ledgerHash
			if err := n.Ask(ctx, api.SubjectAPI+".ledger.hash", struct{}{}, &l); err != nil {
				return err
			}
			switch {
			case i == 0:
				first, index = l, l.Index
			case l.Index != first.Index:
				return fmt.Errorf("%s is at index %d, another node at %d", n.Name, l.Index, first.Index)
			case l != first:
				differ = fmt.Errorf("at index %d the ledger of %s has hash %s, another node's %s", l.Index, n.Name, l.Hash, first.Hash)
				return nil
			}
		}
		return nil
	})
	return index, errors.Join(err, differ)
}
