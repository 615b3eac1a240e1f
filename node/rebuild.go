package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/job"
	"yardmaster/ledger"
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
	rebuildFile = "rebuild.json" // what is under way, in the data directory
)

// RebuildStatus is a copy of a stream that is made anew, or was last.
type RebuildStatus struct {
	Stream  string `json:"stream"`
	Step    string `json:"step,omitempty"`    // what it waits for; "": it is over
	Outcome string `json:"outcome,omitempty"` // how it ended
	Failed  bool   `json:"failed,omitempty"`  // the copy is as it was, or not sound
}

// removal is what is kept on the disk while the node starts anew.
type removal struct {
	Stream  string `json:"stream"`
	Group   string `json:"group"`
	Removed bool   `json:"removed"`
	Why     string `json:"why,omitempty"` // why it was not
}

// rebuilder makes a copy of this node's anew. The others' have to be sound, which
// their nodes find out by reading them now. Then the node leaves the yard's work to
// the others, closes its streams, sees once more that the others have all there
// is, removes its copy and starts again in its process: JetStream fills what is
// empty. Nothing else would take away one copy of three, and that one: a stream
// that is made smaller drops a copy of JetStream's choice.
type rebuilder struct {
	node  *Node
	asked chan string

	mu    sync.Mutex
	state *RebuildStatus
}

func newRebuilder(n *Node) *rebuilder { return &rebuilder{node: n, asked: make(chan string, 1)} }

// startAnew ends the node so that a copy can be removed.
type startAnew struct{ removal }

func (e *startAnew) Error() string { return "the copy of " + e.Stream + " is made anew" }
func (e *startAnew) Unwrap() error { return ErrAgain }

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
	if err := r.resume(ctx); err != nil {
		return err
	}
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
	if r.state != nil && r.state.Step != "" {
		return &cluster.APIError{Code: "409", Text: fmt.Sprintf("%s makes its copy of %s anew: %s", r.node.cfg.Node.Name, r.state.Stream, r.state.Step)}
	}
	r.state = &RebuildStatus{Stream: stream, Step: "the other members read their copies"}
	r.asked <- stream
	return nil
}

// prepare finds out whether a copy may be removed.
func (r *rebuilder) prepare(ctx context.Context, stream string) (group string, err error) {
	n := r.node
	var roll ledger.Roll
	n.raft.View(func(l *ledger.Ledger) { roll = l.Roll() })
	if joining, leaving := roll.Changing(); joining != nil || leaving != nil {
		return "", errors.New("members are changing; ask again when that is over")
	}
	if group, err = n.messages.CopyGroup(stream); err != nil {
		return "", err
	}
	if err := r.othersSound(ctx, stream); err != nil {
		return "", err
	}
	return group, r.spared(ctx, stream, n.cfg.Node.Name)
}

// othersSound has the other members that have a copy read it now.
func (r *rebuilder) othersSound(ctx context.Context, stream string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	sound := map[string]scrub.Result{}
	for _, member := range (copies{r.node}).Others() {
		var result scrub.Result
		if err := r.node.askNode(ctx, member, verbCheck, stream, &result); err != nil {
			return fmt.Errorf("%s does not tell how its copy is: %s", member, plainly(err))
		}
		switch {
		case result.Stream == "": // it has none
		case !result.Sound():
			return fmt.Errorf("the copy on %s is not sound, or could not be compared: mend that first", member)
		default:
			sound[member] = result
		}
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

// spared waits until one of those who are asked says that the stream can do
// without this copy. Only this node itself may say so while it leads.
func (r *rebuilder) spared(ctx context.Context, stream string, members ...string) error {
	ctx, cancel := context.WithTimeout(ctx, spareTime)
	defer cancel()
	self, last := r.node.cfg.Node.Name, "nobody answers"
	for {
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
				last = plainly(err)
			case s.Leads:
				last = self + " leads it"
			case s.Why == "":
				return nil
			default:
				last = s.Why
			}
		}
		if backoff.Sleep(ctx, rebuildLook) != nil {
			return fmt.Errorf("%s cannot do without this copy: %s", stream, last)
		}
	}
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

// takeAway removes the copy, where err says that the node ends for that: now that
// nothing of it works any more but its messages. What came of it is kept on the
// disk.
func (n *Node) takeAway(ctx context.Context, err error) {
	var again *startAnew
	if !errors.As(err, &again) {
		return
	}
	r := again.removal
	err = n.messages.CloseStreams()
	if err == nil {
		err = n.rebuilds.spared(ctx, r.Stream, (copies{n}).Others()...)
	}
	if err == nil {
		err = n.messages.RemoveCopy(r.Stream, r.Group)
	}
	if r.Removed = err == nil; err != nil {
		r.Why = err.Error()
	}
	n.log.Warn("this node's copy of a stream is removed, to be filled anew", "stream", r.Stream, "removed", r.Removed, "why_not", r.Why)
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(n.rebuildPath(), text, 0o600)
	}
	if err != nil {
		n.log.Warn("how far a copy is made anew is not kept", "error", err)
	}
}

func (n *Node) rebuildPath() string { return filepath.Join(n.cfg.Node.DataDir, rebuildFile) }

// resume goes on with what the node was started again for: the copy is filled,
// and read.
func (r *rebuilder) resume(ctx context.Context) error {
	text, err := os.ReadFile(r.node.rebuildPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var was removal
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		return fmt.Errorf("read how far a copy was made anew: %w", err)
	}
	if !was.Removed {
		r.say(RebuildStatus{Stream: was.Stream, Failed: true, Outcome: "nothing was removed: " + was.Why})
		return os.Remove(r.node.rebuildPath())
	}
	for {
		looking, cancel := context.WithTimeout(ctx, spareAsk)
		why, err := r.node.messages.Follows(looking, was.Stream)
		cancel()
		if err == nil && why == "" {
			result, err := r.node.checkCopy(ctx, was.Stream)
			if err == nil && result.Stream != "" && result.Error == "" && len(result.With) > 0 {
				r.say(outcome(was.Stream, &result))
				return os.Remove(r.node.rebuildPath())
			}
			why = "not yet compared with the others"
		}
		if err != nil {
			why = plainly(err)
		}
		r.say(RebuildStatus{Stream: was.Stream, Step: "the copy is filled: " + why})
		if backoff.Sleep(ctx, rebuildLook) != nil {
			return nil
		}
	}
}

func outcome(stream string, r *scrub.Result) RebuildStatus {
	s := RebuildStatus{Stream: stream, Failed: !r.Sound()}
	if s.Outcome = fmt.Sprintf("%d messages, compared with %s: all right", r.Messages, strings.Join(r.With, " and ")); s.Failed {
		s.Outcome = fmt.Sprintf("%d messages, of which %d are still not right", r.Messages, wrongIn(r))
	}
	return s
}

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

func (n *Node) serveCheck(ctx context.Context, payload []byte) ([]byte, error) {
	var stream string
	if err := json.Unmarshal(payload, &stream); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
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
