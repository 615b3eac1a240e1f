package streams

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// metaRetention is the metadata key of a stream under which [Admin.ApplyRetention] lists
// the bounds that it has set.
const metaRetention = "yard.retention"

// retainedStream is a stream that retention settings bound.
type retainedStream struct {
	kept     job.Kept
	defaults jetstream.StreamConfig
	share    int64 // the stream's bytes are the setting's divided by this
}

// retainedStreams returns the streams that retention settings bound.
func retainedStreams(l Layout) []retainedStream {
	kept := map[string]retainedStream{
		subjects.StreamDLQ:         {kept: job.KeptFailed, share: 1},
		subjects.StreamResults:     {kept: job.KeptResults, share: 2},
		subjects.StreamResultBlobs: {kept: job.KeptResults, share: 2},
		subjects.StreamEvents:      {kept: job.KeptEvents, share: 1},
		subjects.StreamState:       {kept: job.KeptEvents, share: stateShare},
	}
	var streams []retainedStream
	for _, aux := range auxStreams(l) {
		if stream, ok := kept[aux.Name]; ok {
			stream.defaults = aux.StreamConfig
			streams = append(streams, stream)
		}
	}
	return append(streams, retainedStream{job.KeptLogs, logStream(l), 1})
}

// ApplyRetention gives the streams the bounds of settings, and the defaults of bounds that
// it has set before and that settings no longer have. It changes nothing else of a stream,
// whose configuration an operator may have chosen. A stream that is missing is skipped:
// [Admin.EnsureStreams] reports it. It also raises the bounds of the streams that refuse
// jobs, if nats.max_store_bytes was raised. Only the authority may call it.
func (a *Admin) ApplyRetention(ctx context.Context, settings job.Retention) error {
	layout := Layout{Identities: make([]string, a.local.Lanes())}.withDefaults(&a.local.Config)
	var errs []error
	for _, stream := range retainedStreams(layout) {
		info, err := Info(ctx, a.local.JS, stream.defaults.Name)
		if errors.Is(err, ErrStreamMissing) {
			continue
		}
		if err == nil {
			err = a.applyRetention(ctx, &stream, &info.Config, settings)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", stream.defaults.Name, err))
		}
	}
	return errors.Join(append(errs, a.raiseBounds(ctx))...)
}

// applyRetention gives one stream, which has the configuration current, the bounds of
// settings. If the members have no space for the bytes, it applies the other bounds, and
// returns an error.
func (a *Admin) applyRetention(ctx context.Context, stream *retainedStream, current *jetstream.StreamConfig, settings job.Retention) error {
	wanted := *current
	if !stream.apply(&wanted, settings) {
		return nil
	}
	_, err := a.local.JS.UpdateStream(ctx, wanted)
	if !isNoSpace(err) {
		return err
	}
	part := ""
	if stream.share > 1 {
		part = fmt.Sprintf(", 1/%d of %s", stream.share, stream.key(job.BoundBytes))
	}
	err = fmt.Errorf("the members have no space for %s%s: set %s lower, or raise nats.max_store_bytes on every member and restart them",
		job.FormatSize(wanted.MaxBytes), part, stream.key(job.BoundBytes))
	if wanted.MaxBytes = current.MaxBytes; wanted.MaxAge == current.MaxAge && wanted.MaxMsgs == current.MaxMsgs && maps.Equal(wanted.Metadata, current.Metadata) {
		return err
	}
	_, err2 := a.local.JS.UpdateStream(ctx, wanted)
	return errors.Join(err, err2)
}

// isNoSpace reports whether err means that the members cannot reserve the bytes of a stream.
func isNoSpace(err error) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && slices.Contains([]jetstream.ErrorCode{codeNoPeers, embedded.CodeNoResources, codeStorage}, refused.ErrorCode)
}

// apply changes the bounds of cfg as settings require, and reports whether it has changed
// something.
func (r *retainedStream) apply(cfg *jetstream.StreamConfig, settings job.Retention) (changed bool) {
	before := strings.Fields(cfg.Metadata[metaRetention])
	var set []string
	for _, b := range []struct {
		bound    job.Bound
		name     string
		current  *int64
		fallback int64
	}{
		{job.BoundAge, "age", (*int64)(&cfg.MaxAge), int64(r.defaults.MaxAge)},
		{job.BoundCount, "count", &cfg.MaxMsgs, r.defaults.MaxMsgs},
		{job.BoundBytes, "bytes", &cfg.MaxBytes, r.defaults.MaxBytes},
	} {
		value := settings.Get(r.kept, b.bound)
		if b.bound == job.BoundBytes {
			value /= r.share
		}
		switch {
		case value > 0:
			set = append(set, b.name)
		case slices.Contains(before, b.name):
			value = b.fallback
		default:
			continue
		}
		if *b.current != value && max(*b.current, value) > 0 { // 0 and -1 both mean unlimited
			*b.current, changed = value, true
		}
	}
	if slices.Equal(before, set) {
		return changed
	}
	cfg.Metadata = maps.Clone(cfg.Metadata)
	if cfg.Metadata == nil {
		cfg.Metadata = map[string]string{}
	}
	cfg.Metadata[metaRetention] = strings.Join(set, " ")
	return true
}

// key returns the key of the setting of one bound.
func (r *retainedStream) key(bound job.Bound) job.RetentionKey {
	return job.RetentionKey{Kept: r.kept, Bound: bound}
}

// EvictDeadLetters removes the dead letters of a queue that were stored before a time, and
// the oldest of those beyond keep. The zero time and keep 0 stand for no bound.
func (a *Admin) EvictDeadLetters(ctx context.Context, queue string, before time.Time, keep int64) error {
	filters := []string{subjects.DLQSubject(queue), subjects.DLQSubject(queue) + ".*"}
	info, err := Info(ctx, a.local.JS, subjects.StreamDLQ)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	first, err := a.firstSince(ctx, before, &info.State)
	if err == nil && keep > 0 {
		var newest uint64
		newest, err = a.firstOfNewest(ctx, filters, keep, &info.State)
		first = max(first, newest)
	}
	if err != nil {
		return fmt.Errorf("find the dead letters of queue %s to evict: %w", queue, err)
	}
	if first <= info.State.FirstSeq {
		return nil
	}
	for _, filter := range filters {
		count, err := a.countFrom(ctx, filter, info.State.FirstSeq)
		if err != nil || count == 0 {
			continue
		}
		if err := purge(ctx, a.local.JS, subjects.StreamDLQ, jetstream.WithPurgeSubject(filter), jetstream.WithPurgeSequence(first)); err != nil {
			return err
		}
	}
	return nil
}

// firstSince returns the sequence of the first dead letter that was stored at or after a
// time, or the next one to be stored. For the zero time it returns 0.
func (a *Admin) firstSince(ctx context.Context, at time.Time, state *jetstream.StreamState) (uint64, error) {
	switch {
	case at.IsZero() || !state.FirstTime.Before(at):
		return 0, nil
	case state.LastTime.Before(at):
		return state.LastSeq + 1, nil
	}
	letters, err := a.reader.readBatches(ctx, subjects.StreamDLQ, getRequest{Since: &at, Batch: 1})
	if err != nil || len(letters) == 0 {
		return 0, err // at the next call
	}
	return letters[0].Seq, nil
}

// firstOfNewest returns the lowest sequence from which on there are at most keep dead
// letters with the subjects of filters. It searches by bisection.
func (a *Admin) firstOfNewest(ctx context.Context, filters []string, keep int64, state *jetstream.StreamState) (uint64, error) {
	low, high := state.FirstSeq, state.LastSeq+1
	for low < high {
		middle, count := low+(high-low)/2, int64(0)
		if low == state.FirstSeq && high == state.LastSeq+1 {
			middle = low // most often there are not too many
		}
		for _, filter := range filters {
			n, err := a.countFrom(ctx, filter, middle)
			if err != nil {
				return 0, err
			}
			count += n
		}
		if count <= keep {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low, nil
}

// headerPending is the header in which a replica counts the messages that follow the one
// it sends.
const headerPending = "Nats-Num-Pending"

// countFrom returns the number of dead letters with a subject from a sequence on.
func (a *Admin) countFrom(ctx context.Context, subject string, seq uint64) (int64, error) {
	messages, err := a.reader.directBatch(ctx, subjects.StreamDLQ, getRequest{Seq: max(seq, 1), NextFor: subject, Batch: 1})
	if errors.Is(err, errNotOnReplica) || err == nil && len(messages) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	values := messages[0].header[headerPending]
	if len(values) == 0 {
		return 0, fmt.Errorf("no count of messages in %s", subjects.StreamDLQ)
	}
	following, err := strconv.ParseInt(values[len(values)-1], 10, 64)
	return following + 1, err
}

// RemoveDeadLettersOf removes the dead letters that refer to the body of an owner.
func (a *Admin) RemoveDeadLettersOf(ctx context.Context, owner job.ID) error {
	return purge(ctx, a.local.JS, subjects.StreamDLQ, jetstream.WithPurgeSubject(subjects.DeadLetters+".*."+owner.String()))
}

// BodySpace returns how many bytes the stream of large bodies holds, and at most holds; 0
// if it has no bound.
func (a *Admin) BodySpace(ctx context.Context) (used, limit uint64, err error) {
	info, err := Info(ctx, a.local.JS, subjects.StreamBlobs)
	if err != nil {
		return 0, 0, err
	}
	return info.State.Bytes, uint64(max(info.Config.MaxBytes, 0)), nil
}

// Usage is how full a stream is.
type Usage struct {
	Stream                  string
	Messages, LimitMessages uint64 // a limit of 0 stands for none
	Bytes, LimitBytes       uint64
	MaxAge                  time.Duration // 0: no limit
	Refuses                 bool          // when it is full it refuses messages, and does not remove the oldest
	Oldest                  time.Time     // when its first message was stored; zero: it has none
}

// Usage returns how full the streams are of a cluster with a number of lanes. It asks their
// leaders at the same time and leaves out streams whose leader does not answer.
func (r *Reader) Usage(ctx context.Context, lanes int) []Usage {
	names := []string{
		subjects.StreamRelocated, subjects.StreamBlobs, subjects.StreamResultBlobs, subjects.StreamResults,
		subjects.StreamDLQ, subjects.StreamEvents, subjects.StreamLogs,
	}
	for lane := lanes - 1; lane >= 0; lane-- {
		names = slices.Insert(names, 0, subjects.LaneStream(uint8(lane)))
	}
	all := make([]Usage, len(names))
	var queries crash.Group
	for i, name := range names {
		queries.Run(func() {
			if info, err := Info(ctx, r.local.JS, name); err == nil {
				all[i] = usageOf(info)
			}
		})
	}
	_ = queries.Wait() // the functions return no errors
	return slices.DeleteFunc(all, func(u Usage) bool { return u.Stream == "" })
}

// usageOf returns how full a stream is.
func usageOf(info *jetstream.StreamInfo) Usage {
	u := Usage{
		Stream: info.Config.Name, Messages: info.State.Msgs, LimitMessages: uint64(max(info.Config.MaxMsgs, 0)),
		Bytes: info.State.Bytes, LimitBytes: uint64(max(info.Config.MaxBytes, 0)), MaxAge: info.Config.MaxAge,
		Refuses: info.Config.Discard == jetstream.DiscardNew,
	}
	if info.State.Msgs > 0 {
		u.Oldest = info.State.FirstTime.UTC()
	}
	return u
}
