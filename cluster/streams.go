package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Layout is what the yard's streams are to be. Zero limits get the defaults
// named beside them.
type Layout struct {
	// Identities has one entry per lane: the identity committed in the ledger.
	// An empty entry accepts any existing lane and gives a new one a random
	// identity.
	Identities []string
	// Create allows making what is missing. Without it a missing stream is
	// [ErrStreamMissing]: a yard that had streams never gets new ones in
	// silence.
	Create bool
	// Closed keeps the lanes from taking anything: while a backup is restored.
	// Without it those that are closed are opened.
	Closed bool
	// Again tells that the streams which are made were there before, and removed.
	// History then begins at 2: its first message is gone, as if it had grown old.
	Again bool

	Replicas     int           // 0: 3, or 1 when the node runs alone
	MaxLaneBytes int64         // per lane, 0: 8 GiB or its share; full means "later", nothing is pushed out
	MaxBlobBytes int64         // 0: 16 GiB or its share
	HistoryAge   time.Duration // 0: 7 days
	HistoryBytes int64         // 0: 4 GiB or its share; events, and as much again for results
	ResultsAge   time.Duration // 0: 24 h
	LogBytes     int64         // 0: 1 GiB or its share
}

// Errors about streams.
var (
	ErrStreamMissing = errors.New("stream does not exist")
	ErrNoLeader      = errors.New("stream has no leader that answers")
	// ErrSilent is [ErrNoLeader] where no replica answers for the stream, either:
	// those of one that was made say after ten seconds that they have no leader.
	ErrSilent = fmt.Errorf("%w, and no replica", ErrNoLeader)
)

// IdentityError: a lane is there, but it is not the one the ledger knows.
type IdentityError struct{ Stream, Want, Got string }

func (e *IdentityError) Error() string {
	return fmt.Sprintf("stream %s has identity %q, the ledger knows %q: it was made anew or restored from elsewhere",
		e.Stream, e.Got, e.Want)
}

// withDefaults fits the limits into what this node may store, since JetStream
// reserves them: two fifths for the lanes, a quarter for blobs, a tenth each
// for events and results, a twentieth for logs, the rest for dead letters.
func (l Layout) withDefaults(c *Config) Layout {
	if l.Replicas == 0 {
		l.Replicas = 1
		if c.clustered() {
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

// EnsureStreams makes the yard's streams, or verifies them where they exist.
// Only the authority may call it. It returns the lanes' identities.
func (c *Cluster) EnsureStreams(ctx context.Context, layout Layout) ([]string, error) {
	if n := len(layout.Identities); n == 0 || n > MaxLanes {
		return nil, fmt.Errorf("%d lanes: there must be 1 to %d", n, MaxLanes)
	}
	layout = layout.withDefaults(&c.cfg)
	identities := make([]string, len(layout.Identities))
	for lane, want := range layout.Identities {
		made, err := c.ensureLane(ctx, uint8(lane), want, layout)
		if err != nil {
			return nil, err
		}
		identities[lane] = made
	}
	for _, cfg := range historyStreams(layout) {
		if _, err := c.ensureStream(ctx, cfg, layout.Create); err != nil {
			return nil, err
		}
	}
	c.ensureLogs(ctx, layout)
	return identities, nil
}

func (c *Cluster) ensureLane(ctx context.Context, lane uint8, want string, layout Layout) (string, error) {
	fresh := want
	if fresh == "" {
		fresh = randomHex(16)
	}
	info, err := c.ensureStream(ctx, laneConfig(lane, fresh, layout), layout.Create)
	if err != nil {
		return "", err
	}
	got := info.Config.Metadata[MetaIdentity]
	if want != "" && got != want {
		return "", &IdentityError{Stream: LaneStream(lane), Want: want, Got: got}
	}
	if !layout.Closed && slices.Contains(info.Config.Subjects, closedSubject(lane)) {
		open := info.Config
		plain := laneConfig(lane, got, layout)
		open.Subjects, open.RePublish = plain.Subjects, plain.RePublish
		if _, err := c.js.UpdateStream(ctx, open); err != nil {
			return "", fmt.Errorf("open lane %d: %w", lane, err)
		}
	}
	return got, nil
}

// ensureStream never changes a stream that exists: what it is was committed,
// and a change is an operator's decision.
func (c *Cluster) ensureStream(ctx context.Context, cfg jetstream.StreamConfig, create bool) (*jetstream.StreamInfo, error) {
	stream, err := c.js.Stream(ctx, cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !create {
			return nil, fmt.Errorf("%s: %w", cfg.Name, ErrStreamMissing)
		}
		stream, err = c.js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			stream, err = c.js.Stream(ctx, cfg.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ensure stream %s: %w", cfg.Name, err)
	}
	return stream.CachedInfo(), nil
}

// maxConsumers is how many consumers a stream may have: anybody may make one, and
// each is a Raft group.
const maxConsumers = 1000

// laneConfig: nothing leaves a lane but by a purge of its beginning. A full
// lane refuses.
func laneConfig(lane uint8, identity string, l Layout) jetstream.StreamConfig {
	n := strconv.Itoa(int(lane))
	plain := laneSubject(lane, plainPublish, "*")
	cfg := jetstream.StreamConfig{
		Name:         LaneStream(lane),
		Description:  "Accepted jobs, lane " + n + ": JSON bodies published to yard.jobs.<queue>",
		Subjects:     []string{plain, laneSubject(lane, nodePublish, "*")},
		Storage:      jetstream.FileStorage,
		Replicas:     l.Replicas,
		Retention:    jetstream.LimitsPolicy,
		Discard:      jetstream.DiscardNew,
		MaxBytes:     l.MaxLaneBytes,
		MaxConsumers: maxConsumers,
		MaxMsgSize:   260 << 10, // a body of at most 256 KiB and its headers
		Duplicates:   laneWindow,
		DenyDelete:   true,
		AllowDirect:  true,
		// Only what plain clients publish: nodes tell the authority themselves.
		RePublish:          &jetstream.RePublish{Source: plain, Destination: subjectTail + "." + n + ".{{wildcard(1)}}"},
		AllowAtomicPublish: true,
		Metadata:           watched(map[string]string{MetaIdentity: identity, metaRole: "lane"}, l.Replicas),
	}
	if l.Closed {
		closeLane(&cfg, lane)
	}
	return cfg
}

// What `nats server check stream` reads from a stream's metadata. It holds the
// thresholds of lag and silence for sources and mirrors unless they are named
// those of peers, and takes any number of peers to mean a cluster.
const (
	monitorEnabled  = "io.nats.monitor.enabled"
	monitorPeers    = "io.nats.monitor.peer-expect"
	monitorPeerLag  = "io.nats.monitor.peer-lag-critical"
	monitorPeerSeen = "io.nats.monitor.peer-seen-critical"

	peerLagCritical  = "10000" // operations; a replica that is well follows within some hundred
	peerSeenCritical = "15s"   // they hear each other every second
)

// watched adds to a stream's metadata what it is to be like when all is well.
func watched(meta map[string]string, replicas int) map[string]string {
	meta[monitorEnabled] = "true"
	if replicas > 1 {
		meta[monitorPeers] = strconv.Itoa(replicas)
		meta[monitorPeerLag], meta[monitorPeerSeen] = peerLagCritical, peerSeenCritical
	}
	return meta
}

// historyStreams are the streams around the lanes.
func historyStreams(l Layout) []jetstream.StreamConfig {
	base := func(name, role, about, subject string) jetstream.StreamConfig {
		return historyStream(l, name, role, about, subject)
	}
	blobs := base(StreamBlobs, "blobs", "Bodies and results too large for a record, in chunks, by hour", subjectBlob+".*.*.*")
	blobs.Discard, blobs.MaxBytes = jetstream.DiscardNew, l.MaxBlobBytes
	events := base(StreamEvents, "events", "What happened: one message per committed batch, one JSON event per line", SubjectHistory)
	events.MaxAge, events.MaxBytes, events.DenyDelete = l.HistoryAge, l.HistoryBytes, true
	if l.Again {
		events.FirstSeq = 2
	}
	results := base(StreamResults, "results", "What jobs returned: one message per committed batch", SubjectResults)
	results.MaxAge, results.MaxBytes, results.DenyDelete = l.ResultsAge, l.HistoryBytes, true
	dlq := base(StreamDLQ, "dead letters", "Jobs that failed for good, with reason, attempts and body", subjectDLQ+".*")
	dlq.Discard = jetstream.DiscardNew
	return []jetstream.StreamConfig{blobs, events, results, dlq}
}

// historyStream is what all streams around the lanes have in common.
func historyStream(l Layout, name, role, about, subject string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: about, Subjects: []string{subject}, Storage: jetstream.FileStorage, Replicas: l.Replicas,
		AllowDirect: true, Duplicates: duplicateWindow, MaxMsgSize: MaxMessage - 64<<10, MaxConsumers: maxConsumers,
		Metadata: watched(map[string]string{metaRole: role}, l.Replicas),
	}
}

// LaneInfo is a lane as its leader sees it.
type LaneInfo struct {
	Lane        uint8
	Identity    string
	Leader      string // member name
	Quorum      bool   // the leader hears a majority, without which it stores nothing
	First, Last uint64
	Messages    uint64
	Bytes       uint64
	MaxBytes    int64
	Created     time.Time
	Replicas    []Replica // the others
}

// Replica is a stream's copy on another member.
type Replica struct {
	Node    string
	Current bool
	Offline bool
	Lag     uint64 // entries behind the leader
}

// LaneInfo asks the lane's leader. [ErrStreamMissing] and [ErrNoLeader] tell
// apart why there may be no answer.
func (c *Cluster) LaneInfo(ctx context.Context, lane uint8) (LaneInfo, error) {
	info, err := c.streamInfo(ctx, LaneStream(lane))
	if err != nil {
		return LaneInfo{}, err
	}
	li := LaneInfo{
		Lane: lane, Identity: info.Config.Metadata[MetaIdentity], Leader: c.leaderOf(info),
		First: info.State.FirstSeq, Last: info.State.LastSeq, Messages: info.State.Msgs, Bytes: info.State.Bytes,
		MaxBytes: info.Config.MaxBytes, Created: info.Created, Quorum: hasQuorum(info.Cluster),
	}
	if info.Cluster != nil {
		for _, r := range info.Cluster.Replicas {
			li.Replicas = append(li.Replicas, Replica{NodeOf(r.Name), r.Current, r.Offline, r.Lag})
		}
	}
	return li, nil
}

// quorumQuiet is how long a leader may hear nothing of a replica that it counts
// on. Replicas answer each second; a server on its own notices only after 10 to
// 20 s that it leads nobody.
const quorumQuiet = 4 * time.Second

// hasQuorum tells whether a stream's leader can store: it hears replicas that make
// a majority with it and lack nothing of what was agreed on. One that still
// catches up is heard, and agrees to nothing new. nil is a server that runs alone.
func hasQuorum(c *jetstream.ClusterInfo) bool {
	if c == nil {
		return true
	}
	heard := 0
	if c.Leader != "" {
		heard++
	}
	for _, r := range c.Replicas {
		if r.Current && r.Active <= quorumQuiet {
			heard++
		}
	}
	return c.Leader != "" && heard > (len(c.Replicas)+1)/2
}

// Last is the sequence number of a lane's last record, by its leader.
func (c *Cluster) Last(ctx context.Context, lane uint8) (uint64, error) {
	info, err := c.streamInfo(ctx, LaneStream(lane))
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

func (c *Cluster) leaderOf(info *jetstream.StreamInfo) string {
	if info.Cluster == nil {
		return c.cfg.Node
	}
	return NodeOf(info.Cluster.Leader)
}

// streamInfo is the word of the stream's leader alone: while there is none, any
// replica answers, which may know of less than was folded long ago.
func (c *Cluster) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	info, err := c.replicaInfo(ctx, name)
	if err == nil && info.Cluster != nil && info.Cluster.Leader == "" {
		return nil, fmt.Errorf("%s: %w", name, ErrNoLeader)
	}
	return info, err
}

// replicaInfo is the word of the leader or, after ten seconds without one, of any
// replica.
func (c *Cluster) replicaInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := c.js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fmt.Errorf("%s: %w", name, ErrStreamMissing)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%s: %w", name, ErrSilent)
	case err != nil:
		return nil, fmt.Errorf("ask about stream %s: %w", name, err)
	}
	return stream.CachedInfo(), nil
}
