// Package subjects names everything that a yard has in NATS: subjects, streams, buckets,
// headers, metadata keys and requests of the JetStream API. No other package spells such
// a name.
package subjects

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Names of streams other than lanes; for lanes see [LaneStream].
const (
	StreamRelocated   = "YARD_RELOCATED"    // records that were moved out of lanes
	StreamBlobs       = "YARD_BLOBS"        // large bodies
	StreamResultBlobs = "YARD_RESULT_BLOBS" // large results
	StreamEvents      = "YARD_EVENTS"
	StreamState       = "YARD_STATE" // bases, from which history rebuilds later states
	StreamResults     = "YARD_RESULTS"
	StreamDLQ         = "YARD_DLQ"
	StreamLogs        = "YARD_LOGS"

	lanePrefix = "YARD_JOBS_" // of the names of lanes
)

// SharedStreams lists the yard's streams other than lanes and boards.
var SharedStreams = []string{StreamRelocated, StreamBlobs, StreamResultBlobs, StreamEvents, StreamState, StreamResults, StreamDLQ, StreamLogs}

// Streams returns the streams of a yard with a number of lanes.
func Streams(lanes int) []string {
	streams := slices.Clone(SharedStreams)
	for _, bucket := range Boards {
		streams = append(streams, BoardStream(bucket))
	}
	for lane := range lanes {
		streams = append(streams, LaneStream(uint8(lane)))
	}
	return streams
}

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
	History     = "yard.history"   // one message per committed batch
	Results     = "yard.results"   // likewise
	State       = "yard.state"     // one message per base
	Lane        = "yard.lane"      // .<n>.p|n.<queue>: direct publishes and those of nodes
	ClosedLanes = "yard.closed"    // .<n>: of closed lanes; nothing is published there
	Tail        = "yard.tail"      // .<n>.<queue>: direct publishes, republished when stored
	DeadLetters = "yard.dlq"       // .<queue>, and .<owner> if a blob holds the job's body
	Logs        = "yard.logs"      // .<job id>, and .<job id>-errors
	Relocated   = "yard.relocated" // .<queue>
	Local       = "yard.local"     // .<node>.…: requests of a node's own clients

	Blobs       = "yard.blob"       // .<owner>.<time>-<suffix>.<chunk>
	ResultBlobs = "yard.resultblob" // .<job id>.<dispatch>-<checksum>.<chunk>
)

// Requests for consumers of users. A node receives them under Consumers, in the
// same form as in the JetStream API.
const (
	Consumers      = "yard.consumers" // .CREATE.<stream>.<name>[.<filter>] and .DELETE.<stream>.<name>
	ConsumerCreate = "CREATE."
	ConsumerDelete = "DELETE."
)

// Refused is followed by a request to the JetStream API that no user may make. A node
// answers it with an error.
const Refused = "yard.refused"

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

// PackedQueue is the queue in the subject of a [NodePublish] that holds several records, each
// with its own queue. No queue has this name.
const PackedQueue = "_"

// Headers. Names that begin with "Nats-" belong to the server.
const (
	HeaderMsgID = "Nats-Msg-Id" // the producer's idempotency key
	HeaderAt    = "Yard-At"     // when a node accepted the job, in Unix nanoseconds
	HeaderDelay = "Yard-Delay"  // set by producers: delay before the job may start, "30s"
	HeaderWait  = "Yard-Wait"   // set by callers: how long to wait for the outcome, "30s"
	HeaderFirst = "Yard-First"  // number of a batch's first entry
	HeaderCount = "Yard-Count"  // number of entries in a batch
	HeaderNode  = "Yard-Node"   // node that sent the reply
	HeaderJob   = "Yard-Job"    // id of a relocated record's job
	HeaderKey   = "Yard-Key"    // a relocated record's idempotency key

	HeaderRetryAfter = "Yard-Retry-After" // milliseconds until a retry makes sense

	HeaderStream     = "Nats-Stream"
	HeaderSubject    = "Nats-Subject"
	HeaderSequence   = "Nats-Sequence"
	HeaderTime       = "Nats-Time-Stamp"
	HeaderStatus     = "Status"
	HeaderExpectLast = "Nats-Expected-Last-Sequence"
	HeaderExpectName = "Nats-Expected-Stream"
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
	APIMsgDelete  = "$JS.API.STREAM.MSG.DELETE."
	APIStepDown   = "$JS.API.STREAM.LEADER.STEPDOWN."
	APIStreamList = "$JS.API.STREAM.LIST"
	APIConsumer   = "$JS.API.CONSUMER."
)

// LaneStream returns the name of a lane's stream, or of the stream of relocated records
// for [job.RelocatedLane].
func LaneStream(lane uint8) string {
	if lane == job.RelocatedLane {
		return StreamRelocated
	}
	return lanePrefix + strconv.Itoa(int(lane))
}

// ParseLaneStream returns the lane whose stream has this name. ok is false for the
// name of any other stream.
func ParseLaneStream(stream string) (lane uint8, ok bool) {
	number, hasPrefix := strings.CutPrefix(stream, lanePrefix)
	if !hasPrefix {
		return 0, false
	}
	return parseLane(number)
}

// parseLane parses the decimal number of a lane. ok is false if text is not a number
// from 0 to MaxLanes-1.
func parseLane(text string) (lane uint8, ok bool) {
	n, err := strconv.ParseUint(text, 10, 8)
	return uint8(n), err == nil && n < MaxLanes
}

// LiveSubject returns the subject of live events of one kind and queue.
func LiveSubject(event, queue string) string {
	return Live + "." + token(event) + "." + token(queue)
}

// LogSubject returns the subject of a job's log.
func LogSubject(id job.ID) string { return Logs + "." + id.String() }

// ErrorSubject returns the subject of the errors of a job's attempts.
func ErrorSubject(id job.ID) string { return LogSubject(id) + "-errors" }

// DLQSubject returns the subject of the dead letters of queue.
func DLQSubject(queue string) string { return DeadLetters + "." + token(queue) }

// DLQBlobSubject returns the subject of a dead letter of queue that refers to a blob,
// given the blob's owner. The owner is in the subject so that the blobs which dead
// letters need can be listed without reading the dead letters.
func DLQBlobSubject(queue string, owner job.ID) string {
	return DLQSubject(queue) + "." + owner.String()
}

// ParseDLQSubject returns the owner of the blob that a dead letter with this subject
// refers to. ok is false if it refers to none.
func ParseDLQSubject(subject string) (owner job.ID, ok bool) {
	tokens := strings.Split(subject, ".")
	if len(tokens) != 4 {
		return job.ID{}, false
	}
	owner, err := job.ParseID(tokens[3])
	return owner, err == nil
}

// BoardStream returns the name of the stream of a bucket.
func BoardStream(bucket string) string { return "KV_" + bucket }

// IsOwnStream reports whether a stream is one of the yard's, and not a user's.
func IsOwnStream(stream string) bool {
	_, isLane := ParseLaneStream(stream)
	return isLane || slices.Contains(SharedStreams, stream) || slices.ContainsFunc(Boards, func(bucket string) bool { return BoardStream(bucket) == stream })
}

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

// LocalSubject returns the subject on which node receives what its own clients send
// to a public subject, which must begin with "yard.". If the public subject already
// names the node, as in yard.node.<node>.<verb>, the result names it only once.
func LocalSubject(node, subject string) string {
	if verb, namesNode := strings.CutPrefix(subject, NodeSubject(node, "")); namesNode {
		return NodeVerbSubject(node, verb)
	}
	return Local + "." + node + strings.TrimPrefix(subject, "yard")
}

// IsReserved reports whether a subject must not be used for replies, because nodes may
// publish to it and their clients may not.
func IsReserved(subject string) bool {
	return strings.HasPrefix(subject, "yard.") || strings.HasPrefix(subject, "$")
}

// NodeVerbSubject returns the subject on which node receives its clients' requests with a
// verb of [NodeVerbs].
func NodeVerbSubject(node, verb string) string { return Local + "." + node + ".node." + verb }

// blobTime is the layout of the time in a blob's name.
const blobTime = "20060102T150405Z"

// BodyBlobName returns the name of a blob with the body of a record: the record's id,
// when the blob was stored, and a suffix, which must be unique, so that no two records under
// the same id share a blob.
func BodyBlobName(owner string, at time.Time, suffix string) string {
	return token(owner) + "." + at.UTC().Format(blobTime) + "-" + suffix
}

// ParseBodyBlob parses the subject of a chunk of a body: the blob's name, and its owner
// and time. ok is false for any other subject.
func ParseBodyBlob(subject string) (name string, owner job.ID, at time.Time, ok bool) {
	rest, ok := strings.CutPrefix(subject, Blobs+".")
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) != 3 {
		return "", job.ID{}, time.Time{}, false
	}
	owner, err := job.ParseID(tokens[0])
	if err != nil {
		return "", job.ID{}, time.Time{}, false
	}
	stored, _, _ := strings.Cut(tokens[1], "-")
	at, err = time.Parse(blobTime, stored)
	return tokens[0] + "." + tokens[1], owner, at, err == nil
}

// BlobChunk returns the subject of one chunk of a blob. prefix is [Blobs] or
// [ResultBlobs].
func BlobChunk(prefix, name string, chunk int) string {
	return prefix + "." + name + "." + strconv.Itoa(chunk)
}

// RelocatedSubject returns the subject of the relocated records of queue.
func RelocatedSubject(queue string) string { return Relocated + "." + token(queue) }

// ParseLaneSubject parses the subject of a job's record: "yard.lane.<n>.<kind>.<queue>"
// in a lane's stream, or "yard.tail.<n>.<queue>" where a lane republishes the direct
// publishes that it has stored. ok is false for any other subject.
func ParseLaneSubject(subject string) (lane uint8, kind, queue string, ok bool) {
	rest, republished := strings.CutPrefix(subject, Tail+".")
	if !republished {
		rest, ok = strings.CutPrefix(subject, Lane+".")
		if !ok {
			return 0, "", "", false
		}
	}
	number, rest, _ := strings.Cut(rest, ".")
	if lane, ok = parseLane(number); !ok {
		return 0, "", "", false
	}
	kind, queue = DirectPublish, rest
	if !republished {
		kind, queue, _ = strings.Cut(rest, ".")
	}
	return lane, kind, queue, queue != ""
}

// token returns name with every character that a token of a subject cannot contain
// replaced by '_', and "_" for "".
func token(name string) string {
	if name == "" {
		return "_"
	}
	replaceForbidden := func(r rune) rune {
		if r <= ' ' || r == '.' || r == '*' || r == '>' || r > '~' {
			return '_'
		}
		return r
	}
	return strings.Map(replaceForbidden, name)
}

// identitySuffix matches what an identity of a server has after the member's name.
var identitySuffix = regexp.MustCompile(`^(.+)-[0-9a-f]{8}$`)

// NodeOf returns the name of the member whose server has an identity, which is
// "<name>-<8 hexadecimal digits>". It returns any other text unchanged.
func NodeOf(identity string) string {
	return identitySuffix.ReplaceAllString(identity, "$1")
}
