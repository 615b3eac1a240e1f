package cluster

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

	lanePrefix = "YARD_JOBS_"
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
	SubjectJobs     = "yard.jobs"     // .<queue>: publish a job, acknowledged by JetStream
	SubjectLive     = "yard.events"   // .<event>.<queue>: live, not stored
	SubjectAdvisory = "yard.advisory" // .<kind>
)

// Internal subjects.
const (
	SubjectHistory = "yard.history" // one message per committed batch
	SubjectResults = "yard.results" // likewise
	subjectLane    = "yard.lane"    // .<n>.p|n.<queue>: direct publishes and those of nodes
	subjectClosed  = "yard.closed"  // .<n>: of closed lanes; nothing is published there
	subjectTail    = "yard.tail"    // .<n>.<queue>: direct publishes, republished when stored
	subjectDLQ     = "yard.dlq"     // .<queue>
	subjectLogs    = "yard.logs"    // .<job id>
	subjectBlob    = "yard.blob"    // .<hour>.<id>.<chunk>
	subjectLocal   = "yard.local"   // .<node>.…: requests of a node's own clients
)

// Requests for consumers of users. A node receives them under SubjectConsumers, in the
// same form as in the JetStream API.
const (
	SubjectConsumers = "yard.consumers" // .CREATE.<stream>.<name>[.<filter>] and .DELETE.<stream>.<name>
	consumerCreate   = "CREATE."
	consumerDelete   = "DELETE."
)

// Verbs of yard.node.<node>.<verb> that announce that the leadership of a lane moves. The
// payload is the lane, one byte.
const (
	verbLeaderMoves = "leader_moves"
	verbLeaderMoved = "leader_moved" // after the new leader is known
)

// nodeVerbs are the verbs that clients may send to a node, as
// yard.node.<node>.<verb>. All other verbs are for messages between nodes.
var nodeVerbs = func() (verbs []string) {
	for i := range api.NodeEndpoints {
		verbs = append(verbs, api.NodeEndpoints[i].Name)
	}
	return verbs
}()

// The kinds of publishes in a lane's subjects.
const (
	directPublish = "p"
	nodePublish   = "n"
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

	headerSubject    = "Nats-Subject"
	headerSequence   = "Nats-Sequence"
	headerTime       = "Nats-Time-Stamp"
	headerStream     = "Nats-Stream"
	headerStatus     = "Status"
	headerExpectLast = "Nats-Expected-Last-Sequence"
	headerExpectName = "Nats-Expected-Stream"
	headerBatchID    = "Nats-Batch-Id"
	headerBatchSeq   = "Nats-Batch-Sequence"
	headerCommit     = "Nats-Batch-Commit"
	headerError      = "Nats-Service-Error"
	headerErrorCode  = "Nats-Service-Error-Code"
)

// Metadata keys of streams.
const (
	MetaIdentity = "io.yard.identity" // a lane's random identity, set when it is created
	metaRole     = "io.yard.role"
)

// MaxLanes is the maximum number of lanes.
const MaxLanes = 16

// Subjects of the JetStream API.
const (
	apiStreams    = "$JS.API."
	apiDirectGet  = "$JS.API.DIRECT.GET."
	apiMsgGet     = "$JS.API.STREAM.MSG.GET."
	apiStepDown   = "$JS.API.STREAM.LEADER.STEPDOWN."
	apiStreamList = "$JS.API.STREAM.LIST"
	apiConsumer   = "$JS.API.CONSUMER."
)

// LaneStream returns the name of a lane's stream.
func LaneStream(lane uint8) string { return lanePrefix + strconv.Itoa(int(lane)) }

// JobsSubject returns the subject for publishing jobs of queue directly.
func JobsSubject(queue string) string { return SubjectJobs + "." + queue }

// LiveSubject returns the subject of live events of one kind and queue.
func LiveSubject(event, queue string) string {
	return SubjectLive + "." + token(event) + "." + token(queue)
}

// LogSubject returns the subject of a job's log.
func LogSubject(id job.ID) string { return subjectLogs + "." + id.String() }

// DLQSubject returns the subject of the dead letters of queue.
func DLQSubject(queue string) string { return subjectDLQ + "." + token(queue) }

func boardStream(bucket string) string { return "KV_" + bucket }

func boardSubject(bucket, key string) string { return "$KV." + bucket + "." + key }

// closedSubject returns the subject of a closed lane, to which no client or node
// may publish.
func closedSubject(lane uint8) string { return subjectClosed + "." + strconv.Itoa(int(lane)) }

func laneSubject(lane uint8, kind, queue string) string {
	return subjectLane + "." + strconv.Itoa(int(lane)) + "." + kind + "." + queue
}

func nodeSubject(node, verb string) string { return api.SubjectNode + "." + node + "." + verb }

// localSubject returns the subject on which node receives what its own clients
// send to subject, which must begin with "yard.". The node's name in a subject of
// a node verb is not repeated.
func localSubject(node, subject string) string {
	if verb, own := strings.CutPrefix(subject, nodeSubject(node, "")); own {
		return nodeVerbSubject(node, verb)
	}
	return subjectLocal + "." + node + strings.TrimPrefix(subject, "yard")
}

func nodeVerbSubject(node, verb string) string { return subjectLocal + "." + node + ".node." + verb }

func blobName(id string, at time.Time) string { return BlobHour(at) + "." + token(id) }

func blobSubject(name string, chunk int) string {
	return subjectBlob + "." + name + "." + strconv.Itoa(chunk)
}

// BlobHour returns the name of the hour that at belongs to. Blobs of an hour are
// purged together.
func BlobHour(at time.Time) string { return at.UTC().Format("2006010215") }

// parseLaneSubject parses "yard.lane.<n>.<kind>.<queue>" and, from the tail,
// "yard.tail.<n>.<queue>".
func parseLaneSubject(subject string) (lane uint8, kind, queue string, ok bool) {
	rest, isLane := strings.CutPrefix(subject, subjectLane+".")
	if !isLane {
		if rest, ok = strings.CutPrefix(subject, subjectTail+"."); !ok {
			return 0, "", "", false
		}
		kind = directPublish
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
