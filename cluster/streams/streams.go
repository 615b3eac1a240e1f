// Package streams creates the yard's streams, writes what is not a job, reads all of them,
// and archives and restores them.
//
// A lane is dense: single records are never deleted, expired or discarded, so a hole is
// damage. It is reported as a [GapError] and never skipped. A direct read is answered by
// any replica, chosen at random, including one that was just stopped. A read therefore
// waits about 50 ms for its first message, asks again, and finally asks the stream's
// leader. A replica that answers "not found" proves nothing; only what was read counts.
package streams

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Layout is the intended configuration of the yard's streams. A zero limit is
// replaced by its default.
type Layout struct {
	// Identities has one entry per lane: the identity committed in the ledger.
	// An empty entry accepts any existing lane and gives a new one a random
	// identity.
	Identities []string
	// Create allows creating missing streams, except those of the generations up to
	// Created, which exist already, see [ledger.StreamGeneration]. A missing stream that
	// may not be created is [ErrStreamMissing], so that lost streams are never replaced
	// silently.
	Create  bool
	Created uint8
	// Closed keeps lanes closed for new records, while a backup is restored. Without
	// it closed lanes are opened.
	Closed bool
	// Recreated means that the streams existed before and were removed. The first
	// event then has sequence 2, as if earlier ones had expired.
	Recreated bool

	Replicas     int   // 0: 3, or 1 when the node runs alone
	MaxLaneBytes int64 // per lane, 0: 8 GiB or its share; a full lane refuses records
	MaxRelocated int64 // bytes of relocated records, 0: 8 GiB or its share
	MaxBlobBytes int64 // of large bodies, 0: 8 GiB or its share; a full stream refuses more
	HistoryBytes int64 // 0: 4 GiB or its share; each for events and results
	ResultBytes  int64 // of large results, 0: 16 GiB or its share; the oldest are evicted
	LogBytes     int64 // 0: 1 GiB or its share
	LetterBytes  int64 // of dead letters, 0: 4 GiB or its share; the oldest are evicted
}

// IdentityError means that a lane's stream exists but is not the one recorded in
// the ledger.
type IdentityError struct{ Stream, Want, Got string }

func (e *IdentityError) Error() string {
	return fmt.Sprintf("stream %s has identity %q, the ledger has %q: the stream was recreated, or restored from another yard",
		e.Stream, e.Got, e.Want)
}

// withDefaults returns l with defaults filled in. They fit into MaxStore, because
// JetStream reserves the limits: five twentieths for all lanes, three twentieths for
// relocated records, an eighth each for large bodies and large results, a tenth each for
// events and results, a sixteenth of that for states, a twentieth for dead letters, a thirtieth for
// logs, and a twenty-fifth for boards, see boardSpecs; the rest is for streams of users.
func (l Layout) withDefaults(c *embedded.Config) Layout {
	replicas := 1
	if c.Clustered() {
		replicas = 3
	}
	l.Replicas = cmp.Or(l.Replicas, replicas)
	l.MaxLaneBytes = cmp.Or(l.MaxLaneBytes, min(8<<30, c.MaxStore/20*5/int64(len(l.Identities))))
	l.MaxRelocated = cmp.Or(l.MaxRelocated, min(8<<30, c.MaxStore/20*3))
	l.MaxBlobBytes = cmp.Or(l.MaxBlobBytes, min(8<<30, c.MaxStore/8))
	l.ResultBytes = cmp.Or(l.ResultBytes, min(16<<30, c.MaxStore/8))
	l.HistoryBytes = cmp.Or(l.HistoryBytes, min(4<<30, c.MaxStore/10))
	l.LogBytes = cmp.Or(l.LogBytes, min(1<<30, c.MaxStore/30))
	l.LetterBytes = cmp.Or(l.LetterBytes, min(4<<30, c.MaxStore/20))
	return l
}

// limitRelocated lowers the bound of relocated records to what the lanes, whose bounds add up
// to laneBytes, leave of eight twentieths of the store, but at least one. Lanes that an
// earlier release created have seven.
func (l *Layout) limitRelocated(c *embedded.Config, laneBytes int64) {
	part := c.MaxStore / 20
	l.MaxRelocated = min(l.MaxRelocated, max(part, 8*part-laneBytes))
}

// mayCreate reports whether a stream of a generation may be created.
func (l *Layout) mayCreate(generation uint8) bool { return l.Create && generation > l.Created }

// Admin creates, empties, archives and removes the cluster's streams. Its methods may
// be called concurrently.
type Admin struct {
	local  *embedded.Server
	reader *Reader
}

// NewAdmin returns an Admin over l's connections.
func NewAdmin(l *embedded.Server) *Admin { return &Admin{l, NewReader(l)} }

// EnsureStreams creates the yard's streams or verifies that they exist, and
// returns the lanes' identities. Only the authority may call it.
func (a *Admin) EnsureStreams(ctx context.Context, layout Layout) ([]string, error) {
	if n := len(layout.Identities); n == 0 || n > subjects.MaxLanes {
		return nil, fmt.Errorf("%d lanes: there must be 1 to %d", n, subjects.MaxLanes)
	}
	layout = layout.withDefaults(&a.local.Config)
	identities, laneBytes := make([]string, len(layout.Identities)), int64(0)
	for lane := range identities {
		cfg, err := a.ensureLane(ctx, uint8(lane), layout)
		if err != nil {
			return nil, err
		}
		identities[lane], laneBytes = cfg.Metadata[subjects.MetaIdentity], laneBytes+cfg.MaxBytes
	}
	layout.limitRelocated(&a.local.Config, laneBytes)
	for _, aux := range auxStreams(layout) {
		if _, err := ensureStream(ctx, a.local.JS, aux.StreamConfig, layout.mayCreate(aux.generation)); err != nil {
			return nil, err
		}
	}
	a.ensureLogs(ctx, layout)
	return identities, nil
}

// ensureLane creates a lane or verifies its identity, and opens the lane unless
// layout.Closed is set. It returns the lane's configuration, or an [*IdentityError] if the
// ledger has another one.
func (a *Admin) ensureLane(ctx context.Context, lane uint8, layout Layout) (*jetstream.StreamConfig, error) {
	recorded := layout.Identities[lane] // in the ledger; "": any identity is accepted
	cfg := laneConfig(lane, cmp.Or(recorded, newIdentity()), layout)
	info, err := ensureStream(ctx, a.local.JS, cfg, layout.mayCreate(1))
	if err != nil {
		return nil, err
	}
	identity := info.Config.Metadata[subjects.MetaIdentity]
	if recorded != "" && identity != recorded {
		return nil, &IdentityError{Stream: subjects.LaneStream(lane), Want: recorded, Got: identity}
	}
	if !layout.Closed && slices.Contains(info.Config.Subjects, subjects.ClosedSubject(lane)) {
		info.Config.Subjects, info.Config.RePublish = cfg.Subjects, cfg.RePublish
		if _, err := a.local.JS.UpdateStream(ctx, info.Config); err != nil {
			return nil, fmt.Errorf("open lane %d: %w", lane, err)
		}
	}
	return &info.Config, nil
}

// ensureStream returns the info of a stream. It creates a missing stream if create is
// true; otherwise the error is [ErrStreamMissing]. It does not change an existing stream.
func ensureStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig, create bool) (*jetstream.StreamInfo, error) {
	stream, err := js.Stream(ctx, cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !create {
			return nil, fmt.Errorf("%s: %w", cfg.Name, ErrStreamMissing)
		}
		stream, err = js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			stream, err = js.Stream(ctx, cfg.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ensure stream %s: %w", cfg.Name, err)
	}
	return stream.CachedInfo(), nil
}

// newIdentity returns a random identity of a lane.
func newIdentity() string {
	var random [16]byte
	rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// maxConsumers is the maximum number of consumers of one stream. Clients can
// create them, and each is a Raft group.
const maxConsumers = 1000

// laneConfig returns the configuration of a lane. Its records are removed only by
// purging its beginning, and a full lane refuses new ones.
func laneConfig(lane uint8, identity string, l Layout) jetstream.StreamConfig {
	n := strconv.Itoa(int(lane))
	direct := subjects.LaneSubject(lane, subjects.DirectPublish, "*")
	cfg := jetstream.StreamConfig{
		Name:         subjects.LaneStream(lane),
		Description:  "Accepted jobs, lane " + n + ": JSON bodies published to yard.jobs.<queue>",
		Subjects:     []string{direct, subjects.LaneSubject(lane, subjects.NodePublish, "*")},
		Storage:      jetstream.FileStorage,
		Replicas:     l.Replicas,
		Retention:    jetstream.LimitsPolicy,
		Discard:      jetstream.DiscardNew,
		MaxBytes:     l.MaxLaneBytes,
		MaxConsumers: maxConsumers,
		MaxMsgSize:   260 << 10, // a body of up to 256 KiB and headers
		Duplicates:   embedded.LaneWindow,
		DenyDelete:   true,
		AllowDirect:  true,
		// Only direct publishes: nodes notify the authority of theirs.
		RePublish: &jetstream.RePublish{Source: direct, Destination: subjects.Tail + "." + n + ".{{wildcard(1)}}"},
		Metadata:  withMonitorMeta(map[string]string{subjects.MetaIdentity: identity, subjects.MetaRole: "lane"}, l.Replicas),
	}
	if l.Closed {
		setClosedSubject(&cfg, lane)
	}
	return cfg
}

// Metadata keys that `nats server check stream` reads. Without the "peer" prefix the
// thresholds of lag and last contact would apply to sources and mirrors. An expected
// number of peers implies a cluster.
const (
	monitorEnabled  = "io.nats.monitor.enabled"
	monitorPeers    = "io.nats.monitor.peer-expect"
	monitorPeerLag  = "io.nats.monitor.peer-lag-critical"
	monitorPeerSeen = "io.nats.monitor.peer-seen-critical"

	peerLagCritical  = "10000" // operations; a healthy replica lags by a few hundred at most
	peerSeenCritical = "15s"   // replicas are in contact every second
)

// withMonitorMeta adds the expectations of `nats server check stream` to a
// stream's metadata.
func withMonitorMeta(meta map[string]string, replicas int) map[string]string {
	meta[monitorEnabled] = "true"
	if replicas > 1 {
		meta[monitorPeers] = strconv.Itoa(replicas)
		meta[monitorPeerLag], meta[monitorPeerSeen] = peerLagCritical, peerSeenCritical
	}
	return meta
}

// auxConfig is the configuration of a stream that is not a lane, and the generation that
// the stream belongs to, see [ledger.StreamGeneration].
type auxConfig struct {
	jetstream.StreamConfig
	generation uint8
}

// auxStreams returns the configurations of all streams other than lanes, logs and
// boards.
func auxStreams(l Layout) []auxConfig {
	relocated := auxStream(l, subjects.StreamRelocated, "relocated records", "Records of jobs that wait long, moved here from the lanes", subjects.Relocated+".*")
	relocated.Discard, relocated.MaxBytes, relocated.DenyDelete = jetstream.DiscardNew, l.MaxRelocated, true
	blobs := auxStream(l, subjects.StreamBlobs, "blobs", "Bodies too large for a record, in chunks, by job", subjects.Blobs+".*.*.*")
	blobs.Discard, blobs.MaxBytes = jetstream.DiscardNew, l.MaxBlobBytes
	resultBlobs := auxStream(l, subjects.StreamResultBlobs, "result blobs", "Results too large for a message of many, in chunks, by job", subjects.ResultBlobs+".*.*.*")
	resultBlobs.MaxAge, resultBlobs.MaxBytes = job.DefaultRetention.Age(job.KeptResults), l.ResultBytes
	events := auxStream(l, subjects.StreamEvents, "events", "What happened: many events per message, in a compact form of JSON lines", subjects.History)
	events.MaxAge, events.MaxBytes, events.DenyDelete = job.DefaultRetention.Age(job.KeptEvents), l.HistoryBytes, true
	if l.Recreated {
		events.FirstSeq = 2
	}
	state := auxStream(l, subjects.StreamState, "state", "The state from time to time, from which history rebuilds that of any later point", subjects.State)
	state.MaxAge, state.MaxBytes, state.DenyDelete = events.MaxAge, max(l.HistoryBytes/stateShare, minStateBytes), true
	results := auxStream(l, subjects.StreamResults, "results", "What jobs returned: one message per committed batch", subjects.Results)
	results.MaxAge, results.MaxBytes, results.DenyDelete = job.DefaultRetention.Age(job.KeptResults), l.HistoryBytes, true
	dlq := auxStream(l, subjects.StreamDLQ, "dead letters", "Jobs that failed for good, with reason, attempts and body", subjects.DeadLetters+".>")
	dlq.MaxAge, dlq.MaxMsgs, dlq.MaxBytes = job.DefaultRetention.Age(job.KeptFailed), job.DefaultRetention.Get(job.KeptFailed, job.BoundCount), l.LetterBytes
	return []auxConfig{{relocated, 2}, {blobs, 1}, {resultBlobs, 2}, {events, 1}, {state, 3}, {results, 1}, {dlq, 1}}
}

// stateShare is how much smaller the stream of bases is than that of events.
const (
	stateShare    = 16
	minStateBytes = 1 << 20
)

// auxStream returns the configuration that all streams other than lanes have in
// common, for the stream with this name, which stores the messages of subject.
func auxStream(l Layout, name, role, description, subject string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: description, Subjects: []string{subject}, Storage: jetstream.FileStorage, Replicas: l.Replicas,
		AllowDirect: true, Duplicates: embedded.DuplicateWindow, MaxMsgSize: embedded.MaxMessage - 64<<10, MaxConsumers: maxConsumers,
		Metadata: withMonitorMeta(map[string]string{subjects.MetaRole: role}, l.Replicas),
	}
}

const (
	closeLaneTimeout = 5 * time.Second // for the reply with a closed lane's last sequence
	impossibleSeq    = 1 << 62         // a sequence number that no lane reaches
)

// CloseLane closes the lane with this identity for new records and returns the state
// of its stream, which is final. The state is zero if no such lane exists. The error is
// [ErrNoLeader] if the lane could not be closed, and [ErrNoReplica] if the stream may
// not exist at all. [Admin.EnsureStreams] opens the lane again.
func (a *Admin) CloseLane(ctx context.Context, lane uint8, identity string) (StreamState, error) {
	info, err := replicaInfo(ctx, a.local.JS, subjects.LaneStream(lane))
	switch {
	case errors.Is(err, ErrStreamMissing):
		return StreamState{}, nil
	case err != nil:
		return StreamState{}, err
	case info.Config.Metadata[subjects.MetaIdentity] != identity:
		return StreamState{}, nil
	case info.Cluster != nil && info.Cluster.Leader == "":
		return StreamState{}, fmt.Errorf("close lane %d: %w", lane, ErrNoLeader)
	}
	setClosedSubject(&info.Config, lane)
	stream, err := a.local.JS.UpdateStream(ctx, info.Config)
	if err != nil {
		return StreamState{}, fmt.Errorf("close lane %d: %w", lane, err)
	}
	last, err := a.closedLaneLast(ctx, lane)
	if err != nil {
		return StreamState{}, fmt.Errorf("close lane %d: %w", lane, err)
	}
	state := streamStateOf(&stream.CachedInfo().Config, stream.CachedInfo().State)
	state.Last = max(state.Last, last)
	return state, nil
}

// closedLaneLast returns the sequence number of the last record that the leader of
// a closed lane has accepted. The stream's info may be older: records accepted
// just before the lane was closed may be stored, and acknowledged, later. So
// closedLaneLast publishes a record with an impossible expected sequence. The leader
// handles that record after all accepted ones, refuses it, and names its last sequence
// in the error.
func (a *Admin) closedLaneLast(ctx context.Context, lane uint8) (last uint64, err error) {
	m := nats.NewMsg(subjects.ClosedSubject(lane))
	m.Header.Set(subjects.HeaderExpectLast, strconv.FormatInt(impossibleSeq, 10))
	reply, err := a.requestWithRetry(ctx, m, closeLaneTimeout)
	if err != nil {
		return 0, err
	}
	_, err = embedded.ParsePubAck(reply.Data)
	apiErr, refused := errors.AsType[*embedded.APIError](err)
	if !refused || apiErr.ErrCode != embedded.CodeWrongLast {
		return 0, fmt.Errorf("the lane's leader did not return its last sequence: %w", err)
	}
	if _, err := fmt.Sscanf(apiErr.Description, "wrong last sequence: %d", &last); err != nil {
		return 0, fmt.Errorf("unexpected error of the lane's leader %q: %w", apiErr.Description, err)
	}
	return last, nil
}

// setClosedSubject replaces a lane's subjects by one to which nothing is published.
func setClosedSubject(cfg *jetstream.StreamConfig, lane uint8) {
	cfg.Subjects, cfg.RePublish = []string{subjects.ClosedSubject(lane)}, nil
}
