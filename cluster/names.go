package cluster

import (
	"strconv"
	"strings"
	"time"
)

// Streams. Lanes are named by [LaneStream].
const (
	StreamBlobs   = "YARD_BLOBS"
	StreamEvents  = "YARD_EVENTS"
	StreamResults = "YARD_RESULTS"
	StreamDLQ     = "YARD_DLQ"
	StreamLogs    = "YARD_LOGS"

	lanePrefix = "YARD_JOBS_"
)

// Buckets of the read models that people watch.
const (
	BucketQueues    = "YARD_QUEUES"
	BucketNodes     = "YARD_NODES"
	BucketAuthority = "YARD_AUTHORITY"
	BucketCron      = "YARD_CRON"
)

// Subjects that people and programs use.
const (
	SubjectJobs     = "yard.jobs"     // .<queue>: publish a job, answered by JetStream
	SubjectEnqueue  = "yard.enqueue"  // .<queue>: request, answered by a node
	SubjectCall     = "yard.call"     // .<queue>: request, answered with the outcome
	SubjectExec     = "yard.exec"     // one contract command; .<command>: only that one
	SubjectSnapshot = "yard.snapshot" // the contract's snapshot
	SubjectStatus   = "yard.status"   // members, authority, lanes, readiness
	SubjectAPI      = "yard.api.v1"   // .<noun>.<verb>
	SubjectLive     = "yard.events"   // .<event>.<queue>: live, not stored
	SubjectAdvisory = "yard.advisory" // .<kind>
)

// Subjects of the yard's own.
const (
	SubjectHistory = "yard.history" // one message per committed batch
	SubjectResults = "yard.results" // likewise
	subjectLane    = "yard.lane"    // .<n>.p|n.<queue>: plain and node publishes
	subjectClosed  = "yard.closed"  // .<n>: nothing is published there
	subjectTail    = "yard.tail"    // .<n>.<queue>: plain records as they are stored
	subjectDLQ     = "yard.dlq"     // .<queue>
	subjectLogs    = "yard.logs"    // .<job id>
	subjectBlob    = "yard.blob"    // .<hour>.<id>.<chunk>
	subjectLocal   = "yard.local"   // .<node>.…: where a node hears its clients
	subjectNode    = "yard.node"    // .<node>.<verb>: nodes among themselves, but for nodeVerbs
)

// nodeVerbs are what clients may say to one node, as yard.node.<node>.<verb>.
// All other verbs are the nodes' own.
var nodeVerbs = []string{"health", "readiness", "snapshot", "status", "stepdown", "drain", "resume"}

// NodeSubject is where clients say one of the public verbs to a node.
func NodeSubject(node, verb string) string { return nodeSubject(node, verb) }

// The publish kinds of a lane's subjects.
const (
	plainPublish = "p"
	nodePublish  = "n"
)

// Headers. The server keeps "Nats-" for itself.
const (
	HeaderMsgID      = "Nats-Msg-Id"      // the producer's idempotency key
	HeaderAt         = "Yard-At"          // when a node took the job, in Unix nanoseconds
	HeaderDelay      = "Yard-Delay"       // a producer's: not before so long from now, "30s"
	HeaderWait       = "Yard-Wait"        // a caller's: how long to wait for the outcome, "30s"
	HeaderFirst      = "Yard-First"       // number of a tale's first entry
	HeaderCount      = "Yard-Count"       // how many entries a tale holds
	HeaderLanes      = "Yard-Lanes"       // folded positions of the lanes
	HeaderNode       = "Yard-Node"        // which node answers
	HeaderIndex      = "Yard-Index"       // which state of the ledger an answer shows
	HeaderRetryAfter = "Yard-Retry-After" // milliseconds until another try makes sense

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
	MetaIdentity = "io.yard.identity" // a lane's identity, random when it was created
	metaRole     = "io.yard.role"
)

// MaxLanes is the highest number of lanes of a yard.
const MaxLanes = 16

// JetStream's request subjects.
const (
	apiStreams    = "$JS.API."
	apiDirectGet  = "$JS.API.DIRECT.GET."
	apiMsgGet     = "$JS.API.STREAM.MSG.GET."
	apiStepDown   = "$JS.API.STREAM.LEADER.STEPDOWN."
	apiStreamList = "$JS.API.STREAM.LIST"
	apiConsumer   = "$JS.API.CONSUMER."
)

// LaneStream names the stream of a lane.
func LaneStream(lane uint8) string { return lanePrefix + strconv.Itoa(int(lane)) }

// JobsSubject is where a program publishes a job of queue.
func JobsSubject(queue string) string { return SubjectJobs + "." + queue }

// LiveSubject is where watchers hear one kind of event of one queue.
func LiveSubject(event, queue string) string {
	return SubjectLive + "." + token(event) + "." + token(queue)
}

// DLQSubject is where the dead letters of queue are kept.
func DLQSubject(queue string) string { return subjectDLQ + "." + token(queue) }

func laneSubject(lane uint8, kind, queue string) string {
	return subjectLane + "." + strconv.Itoa(int(lane)) + "." + kind + "." + queue
}

func nodeSubject(node, verb string) string { return subjectNode + "." + node + "." + verb }

// localSubject is where node hears what its own clients send to subject, one
// that begins with "yard.". What names the node already loses its name.
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

// BlobHour names the hour whose blobs are purged together.
func BlobHour(at time.Time) string { return at.UTC().Format("2006010215") }

// parseLaneSubject reads "yard.lane.<n>.<kind>.<queue>" and, from the tail,
// "yard.tail.<n>.<queue>".
func parseLaneSubject(subject string) (lane uint8, kind, queue string, ok bool) {
	rest, isLane := strings.CutPrefix(subject, subjectLane+".")
	if !isLane {
		if rest, ok = strings.CutPrefix(subject, subjectTail+"."); !ok {
			return 0, "", "", false
		}
		kind = plainPublish
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

// token makes any name one subject token: whatever could not stand in one
// becomes '_'.
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

// NodeOf is the member's name in a server's identity "<name>-<8 hex>".
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
