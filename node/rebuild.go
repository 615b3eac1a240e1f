package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/job"
	"yardmaster/scrub"
)

// What members say to each other about a copy that is made anew: verbRebuild tells
// the node that has it, verbCheck has another read its own now, verbSpares asks it
// whether the stream can do without the first one's.
const (
	verbRebuild = "rebuild"
	verbCheck   = "check"
	verbSpares  = "spares"
)

// How a copy is made anew.
const (
	checkTime   = 30 * time.Minute // for another member to read its copy
	spareTime   = 10 * time.Second // for the others to be alike when this one's is closed
	spareAsk    = 3 * time.Second
	rebuildLook = 200 * time.Millisecond
	reachLook   = time.Second // whether a member that reads still is there
)

// RebuildStatus is a copy of a stream that is made anew, or was last.
type RebuildStatus struct {
	Stream  string `json:"stream"`
	Step    string `json:"step,omitempty"`    // what it waits for; "": it is over
	Outcome string `json:"outcome,omitempty"` // how it ended
	Failed  bool   `json:"failed,omitempty"`  // the copy is as it was, or not sound
}

// rebuilder makes a copy of this node's anew. The others' have to be sound, which
// their nodes find out by reading them now. Then the node leaves the yard's work to
// the others, closes its streams, sees once more that the others have all there
// is, removes its copy and starts again in its process: JetStream fills what is
// empty. Nothing else would take away one copy of three, and that one: a stream
// that is made smaller drops a copy of JetStream's choice.
//
// A yard makes one copy anew at a time: who does so, from the question to the end,
// vouches for no copy of its own. Of two that begin together, each asks the other.
type rebuilder struct {
	node  *Node
	asked chan string

	mu    sync.Mutex
	state *RebuildStatus
}

// newRebuilder knows from the start what it has to go on with.
func newRebuilder(n *Node) *rebuilder {
	r := &rebuilder{node: n, asked: make(chan string, 1)}
	if was, noted := n.notedRemoval(); noted {
		r.state = &RebuildStatus{Stream: was.Stream, Step: "the copy is filled"}
	}
	return r
}

// under tells in words what is under way; "" if nothing is.
func (s *RebuildStatus) under() string {
	if s == nil || s.Step == "" {
		return ""
	}
	return fmt.Sprintf("makes its copy of %s anew: %s", s.Stream, s.Step)
}

func (r *rebuilder) status() *RebuildStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil {
		return nil
	}
	s := *r.state
	return &s
}

func (r *rebuilder) say(s RebuildStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil || r.state.Step != s.Step || r.state.Outcome != s.Outcome {
		r.node.log.Info("copy of a stream is made anew", "stream", s.Stream, "step", s.Step, "outcome", s.Outcome)
	}
	r.state = &s
}

// run makes copies anew until ctx ends, or until one needs the node to start again.
func (r *rebuilder) run(ctx context.Context) error {
	r.resume(ctx)
	for {
		select {
		case stream := <-r.asked:
			group, err := r.prepare(ctx, stream)
			if err != nil {
				r.say(RebuildStatus{Stream: stream, Failed: true, Outcome: "nothing was removed: " + err.Error()})
				continue
			}
			r.say(RebuildStatus{Stream: stream, Step: r.node.cfg.Node.Name + " starts again without its copy"})
			return &startAnew{removal{Stream: stream, Group: group}}
		case <-ctx.Done():
			return nil
		}
	}
}

// begin takes a question for this node.
func (r *rebuilder) begin(stream string) error {
	group, err := r.node.messages.CopyGroup(stream)
	if err != nil {
		return err
	}
	if group == "" {
		return &cluster.APIError{Code: "404", Text: fmt.Sprintf("%s has no copy of %q that could be made anew", r.node.cfg.Node.Name, stream)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if under := r.state.under(); under != "" {
		return &cluster.APIError{Code: "409", Text: r.node.cfg.Node.Name + " " + under}
	}
	r.state = &RebuildStatus{Stream: stream, Step: "the other members read their copies"}
	r.asked <- stream
	return nil
}

// prepare finds out whether a copy may be removed.
func (r *rebuilder) prepare(ctx context.Context, stream string) (group string, err error) {
	n := r.node
	if why := n.changing(); why != "" {
		return "", errors.New(why)
	}
	if group, err = n.messages.CopyGroup(stream); err != nil {
		return "", err
	}
	if err := r.othersSound(ctx, stream); err != nil {
		return "", err
	}
	return group, r.spared(ctx, stream, n.cfg.Node.Name)
}

// changing tells why no copy may be removed while members change: "" if they do not.
func (n *Node) changing() string {
	if under := (roster{n}).Roll().Under(); under != "" {
		return "members are changing (" + under + "); ask again when that is over"
	}
	return ""
}

// othersSound has the other members that have a copy read it now. Of a stream whose
// copies are not read, they only say that they make none anew.
func (r *rebuilder) othersSound(ctx context.Context, stream string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	sound := map[string]scrub.Result{}
	for _, member := range (copies{r.node}).Others() {
		result, err := r.askReading(ctx, member, stream)
		if err != nil {
			return fmt.Errorf("%s does not tell how its copy is: %s", member, plainly(err))
		}
		switch {
		case !cluster.Proved(stream): // what it has, the stream's leader tells
		case result.Stream == "": // it has none
		case !result.Sound():
			return fmt.Errorf("the copy on %s is not sound, or could not be compared: mend that first", member)
		default:
			sound[member] = result
		}
	}
	if !cluster.Proved(stream) {
		return nil
	}
	if len(sound) < 2 {
		return fmt.Errorf("%d other members have a sound copy, and two must", len(sound))
	}
	for member, result := range sound {
		for other := range sound {
			if other != member && !slices.Contains(result.With, other) {
				return fmt.Errorf("the copies on %s and %s were not compared", member, other)
			}
		}
	}
	return nil
}

// askReading has a member read its copy, and waits as long as there is a route to it:
// one that starts anew has forgotten the question.
func (r *rebuilder) askReading(ctx context.Context, member, stream string) (result scrub.Result, err error) {
	ctx, stop := whileReached(ctx, reachLook, func() bool { return slices.Contains(r.node.messages.Reachable(), member) })
	defer stop()
	if err = r.node.askNode(ctx, member, verbCheck, stream, &result); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result, err
}

var errNotReached = errors.New("it is not reached any more")

// whileReached ends, for [errNotReached], when a look finds nobody, or by stop.
func whileReached(ctx context.Context, every time.Duration, reached func() bool) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for backoff.Sleep(ctx, every) == nil {
			if !reached() {
				cancel(errNotReached)
			}
		}
	}()
	return ctx, func() { cancel(nil); <-ended }
}

// spared waits until no member comes or goes, and one of those who are asked says
// that the stream can do without this copy. Only this node itself may say so while it
// leads.
func (r *rebuilder) spared(ctx context.Context, stream string, members ...string) error {
	ctx, cancel := context.WithTimeout(ctx, spareTime)
	defer cancel()
	for {
		why := r.node.changing()
		if why == "" {
			why = r.askSpared(ctx, stream, members)
		}
		if why == "" {
			return nil
		}
		if backoff.Sleep(ctx, rebuildLook) != nil {
			return fmt.Errorf("%s cannot do without this copy: %s", stream, why)
		}
	}
}

// askSpared asks members until one says that the stream can do without this copy;
// else why gives the last one's reason.
func (r *rebuilder) askSpared(ctx context.Context, stream string, members []string) (why string) {
	self := r.node.cfg.Node.Name
	why = "nobody answers"
	for _, member := range members {
		asking, done := context.WithTimeout(ctx, spareAsk)
		var s spares
		var err error
		if member == self {
			s.Why, s.Leads, err = r.node.messages.Spares(asking, stream, self)
			s.Leads = false
		} else {
			err = r.node.askNode(asking, member, verbSpares, sparesQuestion{stream, self}, &s)
		}
		done()
		switch {
		case err != nil:
			why = plainly(err)
		case s.Leads:
			why = self + " leads it"
		case s.Why == "":
			return ""
		default:
			why = s.Why
		}
	}
	return why
}

// sparesQuestion asks whether a stream can do without a member's copy, spares
// answers.
type (
	sparesQuestion struct {
		Stream string `json:"stream"`
		Member string `json:"member"`
	}
	spares struct {
		Why   string `json:"why"`
		Leads bool   `json:"leads"`
	}
)

// checkCopy reads this node's copy of a stream now; a result without a name: there is
// none that is current.
func (n *Node) checkCopy(ctx context.Context, stream string) (r scrub.Result, err error) {
	own, err := (copies{n}).Copies()
	i := slices.IndexFunc(own, func(c scrub.Copy) bool { return c.Stream == stream })
	if err != nil || i < 0 {
		return r, err
	}
	return n.scrubber.Recheck(ctx, own[i]), nil
}

// serveCheck reads this node's copy for a member that wants to remove its own. While
// this one may be without a copy itself, it is none to count on.
func (n *Node) serveCheck(ctx context.Context, payload []byte) ([]byte, error) {
	var stream string
	if err := json.Unmarshal(payload, &stream); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	if under := n.rebuilds.status().under(); under != "" {
		return nil, &cluster.APIError{Code: "409", Text: "it " + under + "; ask again when that is over"}
	}
	result, err := n.checkCopy(ctx, stream)
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

func (n *Node) serveSpares(ctx context.Context, payload []byte) ([]byte, error) {
	var q sparesQuestion
	if err := json.Unmarshal(payload, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	var s spares
	var err error
	if s.Why, s.Leads, err = n.messages.Spares(ctx, q.Stream, q.Member); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

func (n *Node) serveRebuild(_ context.Context, payload []byte) ([]byte, error) {
	var stream string
	if err := json.Unmarshal(payload, &stream); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	if err := n.rebuilds.begin(stream); err != nil {
		return nil, err
	}
	return json.Marshal(n.rebuilds.status())
}

// rebuildQuestion names a member and a stream.
type rebuildQuestion struct {
	Name   string `json:"name"`
	Stream string `json:"stream"`
}

// handleRebuild has a member make its copy of a stream anew.
func (n *Node) handleRebuild(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[rebuildQuestion](r)
	if err != nil {
		return nil, err
	}
	switch {
	case !n.cfg.Clustered():
		return nil, &cluster.APIError{Code: "409", Text: "this node runs alone: nobody else has a copy"}
	case !slices.Contains(n.memberNames(), q.Name):
		return nil, &cluster.APIError{Code: "404", Text: fmt.Sprintf("there is no member %q", q.Name)}
	case q.Name == n.cfg.Node.Name:
		if err := n.rebuilds.begin(q.Stream); err != nil {
			return nil, err
		}
		return n.rebuilds.status(), nil
	}
	var s RebuildStatus
	return &s, n.askNode(ctx, q.Name, verbRebuild, q.Stream, &s)
}
