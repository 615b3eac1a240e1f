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
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Layout is the intended configuration of the yard's streams. A zero limit is
// replaced by its default.
type Layout struct {
	// Identities has one entry per lane: the identity committed in the ledger.
	// An empty entry accepts any existing lane and gives a new one a random
	// identity.
	Identities []string
	// Create allows creating missing streams. Without it a missing stream is
	// [ErrStreamMissing], so that lost streams are never replaced silently.
	Create bool
	// Closed keeps lanes closed for new records, while a backup is restored. Without
	// it closed lanes are opened.
	Closed bool
	// Recreated means that the streams existed before and were removed. The first
	// event then has sequence 2, as if earlier ones had expired.
	Recreated bool

	Replicas     int           // 0: 3, or 1 when the node runs alone
	MaxLaneBytes int64         // per lane, 0: 8 GiB or its share; a full lane refuses records
	MaxBlobBytes int64         // 0: 16 GiB or its share
	HistoryAge   time.Duration // 0: 7 days
	HistoryBytes int64         // 0: 4 GiB or its share; each for events and results
	ResultsAge   time.Duration // 0: 24 h
	LogBytes     int64         // 0: 1 GiB or its share
}

// IdentityError means that a lane's stream exists but is not the one recorded in
// the ledger.
type IdentityError struct{ Stream, Want, Got string }

func (e *IdentityError) Error() string {
	return fmt.Sprintf("stream %s has identity %q, the ledger has %q: the stream was recreated, or restored from another yard",
		e.Stream, e.Got, e.Want)
}

// withDefaults returns l with defaults filled in. They fit into MaxStore, because
// JetStream reserves the limits: two fifths for all lanes, a quarter for blobs, a
// tenth each for events and results, and a twentieth for logs. The rest is for
// dead letters.
func (l Layout) withDefaults(c *embedded.Config) Layout {
	if l.Replicas == 0 {
		l.Replicas = 1
		if c.Clustered() {
			l.Replicas = 3
		}
	}
	setDefault(&l.MaxLaneBytes, min(8<<30, c.MaxStore/5*2/int64(len(l.Identities))))
	setDefault(&l.MaxBlobBytes, min(16<<30, c.MaxStore/4))
	setDefault(&l.HistoryBytes, min(4<<30, c.MaxStore/10))
	setDefault(&l.LogBytes, min(1<<30, c.MaxStore/20))
	setDefault(&l.HistoryAge, 7*24*time.Hour)
	setDefault(&l.ResultsAge, 24*time.Hour)
	return l
}

func setDefault[T int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Admin creates, empties, archives and removes the cluster's streams. Its methods may
// be called concurrently.
type Admin struct {
	local  *embedded.Server
	reader *Reader
}

// NewAdmin returns an Admin over l's connections.
func NewAdmin(l *embedded.Server) *Admin { return &Admin{l, &Reader{l}} }

// EnsureStreams creates the yard's streams or verifies that they exist, and
// returns the lanes' identities. Only the authority may call it.
func (a *Admin) EnsureStreams(ctx context.Context, layout Layout) ([]string, error) {
	if n := len(layout.Identities); n == 0 || n > subjects.MaxLanes {
		return nil, fmt.Errorf("%d lanes: there must be 1 to %d", n, subjects.MaxLanes)
	}
	layout = layout.withDefaults(&a.local.Config)
	identities := make([]string, len(layout.Identities))
	for lane, want := range layout.Identities {
		identity, err := a.ensureLane(ctx, uint8(lane), want, layout)
		if err != nil {
			return nil, err
		}
		identities[lane] = identity
	}
	for _, cfg := range auxStreams(layout) {
		if _, err := ensureStream(ctx, a.local.JS, cfg, layout.Create); err != nil {
			return nil, err
		}
	}
	a.ensureLogs(ctx, layout)
	return identities, nil
}

// ensureLane creates a lane or verifies its identity, and opens it unless layout
// says otherwise. want is the identity recorded in the ledger, "" if any is
// accepted. It returns the lane's identity.
func (a *Admin) ensureLane(ctx context.Context, lane uint8, want string, layout Layout) (string, error) {
	fresh := want
	if fresh == "" {
		fresh = newIdentity()
	}
	info, err := ensureStream(ctx, a.local.JS, laneConfig(lane, fresh, layout), layout.Create)
	if err != nil {
		return "", err
	}
	got := info.Config.Metadata[subjects.MetaIdentity]
	if want != "" && got != want {
		return "", &IdentityError{Stream: subjects.LaneStream(lane), Want: want, Got: got}
	}
	if !layout.Closed && slices.Contains(info.Config.Subjects, subjects.ClosedSubject(lane)) {
		open := info.Config
		direct := laneConfig(lane, got, layout)
		open.Subjects, open.RePublish = direct.Subjects, direct.RePublish
		if _, err := a.local.JS.UpdateStream(ctx, open); err != nil {
			return "", fmt.Errorf("open lane %d: %w", lane, err)
		}
	}
	return got, nil
}

// ensureStream creates a stream if it is missing and create is set. It never
// changes an existing stream: its configuration may have been chosen by an
// operator.
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
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
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
		RePublish:          &jetstream.RePublish{Source: direct, Destination: subjects.Tail + "." + n + ".{{wildcard(1)}}"},
		AllowAtomicPublish: true,
		Metadata:           withMonitorMeta(map[string]string{subjects.MetaIdentity: identity, subjects.MetaRole: "lane"}, l.Replicas),
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

// auxStreams returns the configurations of all streams other than lanes, logs and
// boards.
func auxStreams(l Layout) []jetstream.StreamConfig {
	base := func(name, role, about, subject string) jetstream.StreamConfig {
		return auxStream(l, name, role, about, subject)
	}
	blobs := base(subjects.StreamBlobs, "blobs", "Bodies and results too large for a record, in chunks, by hour", subjects.Blobs+".*.*.*")
	blobs.Discard, blobs.MaxBytes = jetstream.DiscardNew, l.MaxBlobBytes
	events := base(subjects.StreamEvents, "events", "What happened: one message per committed batch, one JSON event per line", subjects.History)
	events.MaxAge, events.MaxBytes, events.DenyDelete = l.HistoryAge, l.HistoryBytes, true
	if l.Recreated {
		events.FirstSeq = 2
	}
	results := base(subjects.StreamResults, "results", "What jobs returned: one message per committed batch", subjects.Results)
	results.MaxAge, results.MaxBytes, results.DenyDelete = l.ResultsAge, l.HistoryBytes, true
	dlq := base(subjects.StreamDLQ, "dead letters", "Jobs that failed for good, with reason, attempts and body", subjects.DeadLetters+".*")
	dlq.Discard = jetstream.DiscardNew
	return []jetstream.StreamConfig{blobs, events, results, dlq}
}

// auxStream returns the configuration that all streams other than lanes have in
// common.
func auxStream(l Layout, name, role, about, subject string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: about, Subjects: []string{subject}, Storage: jetstream.FileStorage, Replicas: l.Replicas,
		AllowDirect: true, Duplicates: embedded.DuplicateWindow, MaxMsgSize: embedded.MaxMessage - 64<<10, MaxConsumers: maxConsumers,
		Metadata: withMonitorMeta(map[string]string{subjects.MetaRole: role}, l.Replicas),
	}
}
