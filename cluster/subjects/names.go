// Package subjects names everything that a yard has in NATS: subjects, streams, buckets,
// headers, metadata keys and requests of the JetStream API. No other package spells such
// a name.
package subjects

import (
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Names of streams other than lanes; for lanes see [LaneStream].
const (
	StreamBlobs   = "YARD_BLOBS"
	StreamEvents  = "YARD_EVENTS"
	StreamResults = "YARD_RESULTS"
	StreamDLQ     = "YARD_DLQ"
	StreamLogs    = "YARD_LOGS"

	LanePrefix = "YARD_JOBS_" // of the names of lanes
)

// Names of the boards, key-value buckets with read models for people.
const (
	BucketQueues    = "YARD_QUEUES"
	BucketNodes     = "YARD_NODES"
	BucketAuthority = "YARD_AUTHORITY"
	BucketCron      = "YARD_CRON"
)

// Boards lists the buckets that show the state of the yard.
var Boards = []string{BucketAuthority, BucketNodes, BucketQueues, BucketCron}

// Public subjects.
const (
	Jobs     = "yard.jobs"     // .<queue>: publish a job, acknowledged by JetStream
	Live     = "yard.events"   // .<event>.<queue>: live, not stored
	Advisory = "yard.advisory" // .<kind>
)

// Internal subjects.
const (
	History     = "yard.history" // one message per committed batch
	Results     = "yard.results" // likewise
	Lane        = "yard.lane"    // .<n>.p|n.<queue>: direct publishes and those of nodes
	ClosedLanes = "yard.closed"  // .<n>: of closed lanes; nothing is published there
	Tail        = "yard.tail"    // .<n>.<queue>: direct publishes, republished when stored
	DeadLetters = "yard.dlq"     // .<queue>
	Logs        = "yard.logs"    // .<job id>
	Blobs       = "yard.blob"    // .<hour>.<id>.<chunk>
	Local       = "yard.local"   // .<node>.…: requests of a node's own clients
)

// Requests for consumers of users. A node receives them under Consumers, in the
// same form as in the JetStream API.
const (
	Consumers      = "yard.consumers" // .CREATE.<stream>.<name>[.<filter>] and .DELETE.<stream>.<name>
	ConsumerCreate = "CREATE."
	ConsumerDelete = "DELETE."
)

// Verbs of yard.node.<node>.<verb> that announce that the leadership of a lane moves. The
// payload is the lane, one byte.
const (
	VerbLeaderMoves = "leader_moves"
	VerbLeaderMoved = "leader_moved" // after the new leader is known
)

// NodeVerbs are the verbs that clients may send to a node, as
// yard.node.<node>.<verb>. All other verbs are for messages between nodes.
var NodeVerbs = func() (verbs []string) {
	for i := range api.NodeEndpoints {
		verbs = append(verbs, api.NodeEndpoints[i].Name)
	}
	return verbs
}()

// The kinds of publishes in a lane's subjects.
const (
	DirectPublish = "p"
	NodePublish   = "n"
)

// Headers. Names that begin with "Nats-" belong to the server.
const (
	HeaderMsgID = "Nats-Msg-Id" // the producer's idempotency key
	HeaderAt    = "Yard-At"     // when a node accepted the job, in Unix nanoseconds
	HeaderDelay = "Yard-Delay"  // set by producers: delay before the job may start, "30s"
	HeaderWait  = "Yard-Wait"   // set by callers: how long to wait for the outcome, "30s"
	HeaderFirst = "Yard-First"  // number of a batch's first entry
	HeaderCount = "Yard-Count"  // number of entries in a batch
	HeaderNode  = "Yard-Node"   // node that sent the reply

	HeaderRetryAfter = "Yard-Retry-After" // milliseconds until a retry makes sense

	HeaderSubject    = "Nats-Subject"
	HeaderSequence   = "Nats-Sequence"
	HeaderTime       = "Nats-Time-Stamp"
	headerStream     = "Nats-Stream"
	HeaderStatus     = "Status"
	HeaderExpectLast = "Nats-Expected-Last-Sequence"
	HeaderExpectName = "Nats-Expected-Stream"
	HeaderBatchID    = "Nats-Batch-Id"
	HeaderBatchSeq   = "Nats-Batch-Sequence"
	HeaderCommit     = "Nats-Batch-Commit"
	HeaderError      = "Nats-Service-Error"
	HeaderErrorCode  = "Nats-Service-Error-Code"
)

// Metadata keys of streams.
const (
	MetaIdentity = "io.yard.identity" // a lane's random identity, set when it is created
	MetaRole     = "io.yard.role"
)

// MaxLanes is the maximum number of lanes.
const MaxLanes = 16

// Subjects of the JetStream API.
const (
	APIStreams    = "$JS.API."
	APIDirectGet  = "$JS.API.DIRECT.GET."
	APIMsgGet     = "$JS.API.STREAM.MSG.GET."
	APIStepDown   = "$JS.API.STREAM.LEADER.STEPDOWN."
	APIStreamList = "$JS.API.STREAM.LIST"
	APIConsumer   = "$JS.API.CONSUMER."
)

// LaneStream returns the name of a lane's stream.
func LaneStream(lane uint8) string { return LanePrefix + strconv.Itoa(int(lane)) }

// JobsSubject returns the subject for publishing jobs of queue directly.
func JobsSubject(queue string) string { return Jobs + "." + queue }

// LiveSubject returns the subject of live events of one kind and queue.
func LiveSubject(event, queue string) string {
	return Live + "." + token(event) + "." + token(queue)
}

// LogSubject returns the subject of a job's log.
func LogSubject(id job.ID) string { return Logs + "." + id.String() }

// DLQSubject returns the subject of the dead letters of queue.
func DLQSubject(queue string) string { return DeadLetters + "." + token(queue) }

// BoardStream returns the name of the stream of a bucket.
func BoardStream(bucket string) string { return "KV_" + bucket }

// BoardSubject returns the subject of a row of a bucket.
func BoardSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// ClosedSubject returns the subject of a closed lane, to which no client or node
// may publish.
func ClosedSubject(lane uint8) string { return ClosedLanes + "." + strconv.Itoa(int(lane)) }

// LaneSubject returns the subject of the records of a queue in a lane. kind is
// [DirectPublish] or [NodePublish].
func LaneSubject(lane uint8, kind, queue string) string {
	return Lane + "." + strconv.Itoa(int(lane)) + "." + kind + "." + queue
}

// NodeSubject returns the subject of a request to a node.
func NodeSubject(node, verb string) string { return api.SubjectNode + "." + node + "." + verb }

// LocalSubject returns the subject on which node receives what its own clients
// send to subject, which must begin with "yard.". The node's name in a subject of
// a node verb is not repeated.
func LocalSubject(node, subject string) string {
	if verb, own := strings.CutPrefix(subject, NodeSubject(node, "")); own {
		return NodeVerbSubject(node, verb)
	}
	return Local + "." + node + strings.TrimPrefix(subject, "yard")
}

// NodeVerbSubject returns the subject on which node receives its clients' requests with a
// verb of [NodeVerbs].
func NodeVerbSubject(node, verb string) string { return Local + "." + node + ".node." + verb }

// BlobName returns the name of a blob that is stored at the time at.
func BlobName(id string, at time.Time) string { return BlobHour(at) + "." + token(id) }

// BlobSubject returns the subject of one chunk of a blob.
func BlobSubject(name string, chunk int) string {
	return Blobs + "." + name + "." + strconv.Itoa(chunk)
}

// BlobHour returns the name of the hour that at belongs to. Blobs of an hour are
// purged together.
func BlobHour(at time.Time) string { return at.UTC().Format("2006010215") }

// ParseLaneSubject parses "yard.lane.<n>.<kind>.<queue>" and, from the tail,
// "yard.tail.<n>.<queue>".
func ParseLaneSubject(subject string) (lane uint8, kind, queue string, ok bool) {
	rest, isLane := strings.CutPrefix(subject, Lane+".")
	if !isLane {
		if rest, ok = strings.CutPrefix(subject, Tail+"."); !ok {
			return 0, "", "", false
		}
		kind = DirectPublish
	}
	number, rest, ok := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(number, 10, 8)
	if !ok || err != nil || n >= MaxLanes {
		return 0, "", "", false
	}
	if isLane {
		kind, rest, ok = strings.Cut(rest, ".")
	}
	return uint8(n), kind, rest, ok && rest != ""
}

// token returns name with every character that a subject token cannot contain
// replaced by '_'.
func token(name string) string {
	if name == "" {
		return "_"
	}
	clean := func(r rune) rune {
		if r <= ' ' || r == '.' || r == '*' || r == '>' || r > '~' {
			return '_'
		}
		return r
	}
	return strings.Map(clean, name)
}

// NodeOf returns the member name in a server's identity "<name>-<8 hex>".
func NodeOf(identity string) string {
	cut := len(identity) - 9
	if cut < 1 || identity[cut] != '-' {
		return identity
	}
	for _, c := range []byte(identity[cut+1:]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return identity
		}
	}
	return identity[:cut]
}
