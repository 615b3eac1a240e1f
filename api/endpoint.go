package api

import (
	"fmt"
	"slices"
	"strings"
)

// The beginnings of the subjects of endpoints.
const (
	SubjectEnqueue  = "yard.enqueue"  // .<queue>: answered with the job's acceptance
	SubjectCall     = "yard.call"     // .<queue>: answered with the job's outcome
	SubjectExec     = "yard.exec"     // one contract command of any kind; .<command>: of that kind
	SubjectSnapshot = "yard.snapshot" // the runtime contract's snapshot
	SubjectStatus   = "yard.status"   // members, authority, lanes, readiness
	SubjectAPI      = "yard.api.v1"   // .<noun>.<verb>
	SubjectNode     = "yard.node"     // .<node>.<verb>: at one node
)

// Headers of a reply that shows the ledger, over NATS and HTTP.
const (
	HeaderIndex = "Yard-Index" // index of the last ledger entry that the reply shows
	HeaderEvent = "Yard-Event" // number of the last event up to that entry, a point of history for state-at
	// HeaderAsOf is the time of the last entry, in RFC 3339, of a node that reaches no majority of the members: more
	// may have happened since. It is in 1970 if the node has started again and has no entry.
	HeaderAsOf = "Yard-As-Of"
)

// Headers of a request, over NATS and HTTP.
const (
	HeaderReason = "Yard-Reason" // why the caller asks for a change; kept in the history
	HeaderClient = "Yard-Client" // "cli": the request comes from the command line
)

// Endpoint describes one operation: how it is requested, and with which types.
type Endpoint struct {
	Name    string // "job-show"; unique in its table
	Subject string // over NATS; a "*" is a token of the request, such as a queue or a node
	Summary string // for people, without a full stop

	// Request is the zero value of the request: a struct with JSON tags. nil means that the
	// request is empty or not JSON.
	Request any
	Reply   any // zero value of the reply; nil means any JSON

	LongRunning  bool // a request may take minutes
	Large        bool // a request over HTTP may have 32 MiB instead of 1 MiB
	Indexed      bool // the reply has the headers [HeaderIndex] and [HeaderEvent], and [HeaderAsOf] without a majority
	AllowNoReply bool // a NATS message without a reply subject is a request, too

	// The rest describes the HTTP route. A wildcard of the path sets the key of its
	// name in the request. Parameters of the query set the other keys if the method
	// has no body, and otherwise those in Query.
	Pattern   string           // "GET /v1/jobs/{id}"; "" means that there is no route
	Status    int              // of a successful response; 0 means 200
	Accepts   string           // accepted keys besides those of the path, separated by spaces; "*" is all, "-name" excludes one
	Required  string           // those of them that are required
	Token     string           // wildcard that becomes the subject's "*" instead of a key
	Query     string           // further parameters of the query, which may be keys, separated by spaces
	Headers   string           // headers of the request with a meaning of their own, separated by spaces
	Shapes    map[string]Shape // types of keys that are raw JSON in Request
	Forms     []Form           // the forms of Request and Reply, if they have several
	WaitReply any              // zero value of the reply to a request that waited for the job's end
	Media     string           // media type of a successful response that is not JSON
	Content   bool             // the response is the content of which Reply holds a part, as it is; a client may request a range of its bytes
}

// overhopNouns lists the nouns of the operations that are also served over Overhop, to clients
// that enqueue and run jobs. Operations on members and backups are reserved for operators, and
// Overhop has messages of its own to enqueue.
var overhopNouns = []string{"job", "queue", "cron", "dlq", "retention", "schema", "limit", "operation", "worker", "status"}

// OverhopOp returns the name of the operation in Overhop's message API, such as "job.list", or
// "" if it is not served over Overhop.
func (e *Endpoint) OverhopOp() string {
	name := strings.TrimPrefix(strings.TrimPrefix(e.Subject, SubjectAPI+"."), "yard.")
	if noun, _, _ := strings.Cut(name, "."); slices.Contains(overhopNouns, noun) {
		return name
	}
	return ""
}

// NeededKeys returns the keys that a request must have: the wildcards of the path, and the required keys.
func (e *Endpoint) NeededKeys() (keys []string) {
	for part := range strings.SplitSeq(e.Pattern, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok && strings.TrimSuffix(name, "}") != e.Token {
			keys = append(keys, strings.TrimSuffix(name, "}"))
		}
	}
	return append(keys, strings.Fields(e.Required)...)
}

// Keys returns the keys in all that the endpoint takes, in the same order. all has the keys of the request's
// type; a key of a nested object is written as in "retry.backoff_ms".
func (e *Endpoint) Keys(all []string) (keys []string) {
	accepted := append(strings.Fields(e.Accepts), e.NeededKeys()...)
	takesAll := e.Pattern == "" || slices.Contains(accepted, "*")
	for _, key := range all {
		first, _, _ := strings.Cut(key, ".")
		if (takesAll || slices.Contains(accepted, first)) && !slices.Contains(accepted, "-"+first) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Shape describes the type of a key of a request that is raw JSON in its struct.
type Shape struct {
	Of      any    // zero value of the type, or of an item if List is set
	List    bool   // the key is a list
	Without string // a field that is not accepted; "" means none
}

// Subject returns the subject of an endpoint in [Endpoints] or [BackupEndpoints],
// with token in place of its "*"; several tokens are joined by dots. It panics if no
// endpoint has this name.
func Subject(name string, token ...string) string {
	for _, table := range [][]Endpoint{Endpoints, BackupEndpoints} {
		for i := range table {
			if e := &table[i]; e.Name == name {
				return strings.Replace(e.Subject, "*", strings.Join(token, "."), 1)
			}
		}
	}
	panic(fmt.Sprintf("api: no endpoint is named %q", name))
}

// NodeSubject returns the subject of an endpoint in [NodeEndpoints] at one node. It
// panics if no endpoint has this name.
func NodeSubject(node, name string) string {
	if !slices.ContainsFunc(NodeEndpoints, func(e Endpoint) bool { return e.Name == name }) {
		panic(fmt.Sprintf("api: no endpoint of a node is named %q", name))
	}
	return SubjectNode + "." + node + "." + name
}
