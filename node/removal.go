package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"yardmaster/cluster"
	"yardmaster/internal/backoff"
	"yardmaster/scrub"
)

// removalFile is where a removal is kept, in the data directory.
const removalFile = "rebuild.json"

// removal is what is kept on the disk while the node starts anew.
type removal struct {
	Stream  string `json:"stream"`
	Group   string `json:"group"`
	Removed bool   `json:"removed"`
	Why     string `json:"why,omitempty"` // why it was not
}

// startAnew ends the node so that a copy can be removed.
type startAnew struct{ removal }

func (e *startAnew) Error() string { return "the copy of " + e.Stream + " is made anew" }
func (e *startAnew) Unwrap() error { return ErrAgain }

// takeAway removes the copy, where err says that the node ends for that: now that
// nothing of it works any more but its messages. That it does is kept on the disk
// first: whatever ends the process then, the next one reads what there is.
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
		r.Removed = true
		err = n.noteRemoval(&r)
	}
	if err == nil {
		err = n.messages.RemoveCopy(r.Stream, r.Group)
	}
	if err != nil {
		r.Removed, r.Why = false, err.Error()
		if err := n.noteRemoval(&r); err != nil {
			n.log.Warn("how far a copy is made anew is not kept", "error", err)
		}
	}
	n.log.Warn("this node's copy of a stream is removed, to be filled anew", "stream", r.Stream, "removed", r.Removed, "why_not", r.Why)
}

func (n *Node) removalPath() string { return filepath.Join(n.cfg.Node.DataDir, removalFile) }

func (n *Node) noteRemoval(r *removal) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(n.removalPath(), text, 0o600)
}

// notedRemoval reads what the node was started again for, if it was. A note that
// cannot be read keeps nobody from starting: what a copy lacks is filled all the
// same, and found when it is read the next time.
func (n *Node) notedRemoval() (was removal, noted bool) {
	text, err := os.ReadFile(n.removalPath())
	if errors.Is(err, fs.ErrNotExist) {
		return was, false
	}
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		n.log.Warn("how far a copy was made anew is not known, and is forgotten", "file", n.removalPath(), "error", err)
		n.forgetRemoval()
		return was, false
	}
	return was, true
}

func (n *Node) forgetRemoval() {
	if err := os.Remove(n.removalPath()); err != nil {
		n.log.Warn("the note of a copy that was made anew stays", "error", err)
	}
}

// resume goes on with what the node was started again for: the copy is filled,
// and read.
func (r *rebuilder) resume(ctx context.Context) {
	was, noted := r.node.notedRemoval()
	for noted {
		s := r.refilled(ctx, &was)
		if s.Step == "" {
			r.node.forgetRemoval()
			noted = false
		}
		r.say(s)
		if noted && backoff.Sleep(ctx, rebuildLook) != nil {
			return
		}
	}
}

// refilled looks how far a copy is.
func (r *rebuilder) refilled(ctx context.Context, was *removal) RebuildStatus {
	if !was.Removed {
		return RebuildStatus{Stream: was.Stream, Failed: true, Outcome: "nothing was removed: " + was.Why}
	}
	looking, cancel := context.WithTimeout(ctx, spareAsk)
	why, err := r.node.messages.Follows(looking, was.Stream)
	cancel()
	switch {
	case errors.Is(err, cluster.ErrNoCopy):
		return RebuildStatus{Stream: was.Stream, Outcome: "it lies on other members now"}
	case err == nil && why == "" && !cluster.Proved(was.Stream):
		return RebuildStatus{Stream: was.Stream, Outcome: "filled from its leader; copies of it are not read"}
	case err == nil && why == "":
		result, err := r.node.checkCopy(ctx, was.Stream)
		if err == nil && result.Stream != "" && result.Error == "" && len(result.With) > 0 {
			return outcome(was.Stream, &result)
		}
		why = "not yet compared with the others"
	case err != nil:
		why = plainly(err)
	}
	return RebuildStatus{Stream: was.Stream, Step: "the copy is filled: " + why}
}

func outcome(stream string, r *scrub.Result) RebuildStatus {
	s := RebuildStatus{Stream: stream, Failed: !r.Sound()}
	if s.Outcome = fmt.Sprintf("%d messages, compared with %s: all right", r.Messages, strings.Join(r.With, " and ")); s.Failed {
		s.Outcome = fmt.Sprintf("%d messages, of which %d are still not right", r.Messages, wrongIn(r))
	}
	return s
}
