package catalogue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"yardmaster/drill"
	"yardmaster/drill/disk"
)

// scrubbing has members read their copies of streams all the time.
const scrubbing = "[scrub]\nevery = \"5s\"\n"

// scrubs is what the members found in their copies.
type scrubs struct {
	Reports []struct {
		Node    string
		Ended   time.Time
		Took    int64 `json:"took_ms"`
		Results []struct {
			Stream   string
			Error    string
			With     []string
			Findings []struct {
				Kind, Which string
				Count       int
			}
		}
		Rebuild *struct {
			Stream, Step, Outcome string
			Failed                bool
		}
	}
}

// askScrubs asks any node but one what all have found.
func askScrubs(ctx context.Context, s *drill.Stage, but *drill.Node) (found scrubs, err error) {
	for _, n := range s.Nodes {
		if n != but && n.Running() {
			if err = n.Ask(ctx, "yard.api.v1.cluster.scrub", struct{}{}, &found); err == nil {
				return found, nil
			}
		}
	}
	return found, errors.Join(err, errors.New("no node tells what was found in its copies"))
}

// damagedAt waits until a node has read and compared all its copies in a round that
// began after a time, and counts the messages that it found wrong, by stream.
func damagedAt(ctx context.Context, s *drill.Stage, n *drill.Node, after time.Time) (wrong map[string]int, err error) {
	read := within(ctx, 2*time.Minute, func() bool {
		found, failed := askScrubs(ctx, s, n)
		err = failed
		for _, r := range found.Reports {
			if r.Node != n.Name || r.Ended.Add(-time.Duration(r.Took)*time.Millisecond).Before(after) {
				continue
			}
			wrong = map[string]int{}
			for _, copied := range r.Results {
				if copied.Error != "" || len(copied.With) < len(s.Nodes)-1 {
					return false
				}
				for _, f := range copied.Findings {
					wrong[copied.Stream] += f.Count
				}
			}
			return len(r.Results) >= 7
		}
		return false
	})
	if !read {
		return nil, errors.Join(err, fmt.Errorf("%s does not read its copies", n.Name))
	}
	return wrong, nil
}

// rebuild has a node make its copies anew, one after the other, as an operator does
// who asks another node.
func rebuild(ctx context.Context, s *drill.Stage, n *drill.Node, wrong map[string]int) error {
	for stream := range wrong {
		began := time.Now()
		var asked error
		if !within(ctx, 2*time.Minute, func() bool { asked = rebuildOnce(ctx, s, n, stream); return asked == nil }) {
			return fmt.Errorf("rebuild %s on %s: %w", stream, n.Name, asked)
		}
		s.Figure("until a copy was made anew and read", time.Since(began))
	}
	left, err := damagedAt(ctx, s, n, time.Now())
	s.Promise(err != nil || len(left) == 0, "%s finds messages wrong in copies that were made anew: %v", n.Name, left)
	return err
}

// rebuildOnce asks once and waits for the end. It may be refused while the others
// have not been compared.
func rebuildOnce(ctx context.Context, s *drill.Stage, n *drill.Node, stream string) error {
	other := s.Nodes[0]
	if other == n {
		other = s.Nodes[1]
	}
	var begun any
	err := other.Ask(ctx, "yard.api.v1.cluster.rebuild", map[string]string{"name": n.Name, "stream": stream}, &begun)
	if err != nil {
		return err
	}
	err = errors.New("it does not end")
	within(ctx, time.Minute, func() bool {
		found, _ := askScrubs(ctx, s, n)
		for _, r := range found.Reports {
			if r.Node != n.Name || r.Rebuild == nil || r.Rebuild.Stream != stream || r.Rebuild.Step != "" {
				continue
			}
			if err = nil; r.Rebuild.Failed {
				err = errors.New(r.Rebuild.Outcome)
			}
			return true
		}
		return false
	})
	return err
}

// heldRecord is where the record of a job that is held names its queue.
var heldRecord = regexp.MustCompile(`yard\.lane\.\d+\.[pn]\.` + heldQueue)

// rot turns a bit in some records of a node's lanes while it runs: what its server
// has in memory is right, and its disk is not. Each of them is found, and nothing
// else.
func rot(ctx context.Context, s *drill.Stage) error {
	n := anyone(s)
	s.Fault("damage", n.Name+": bits of held jobs are turned under the running node")
	files, err := filepath.Glob(filepath.Join(n.DataDir, "nats", "jetstream", "YARD", "streams", "YARD_JOBS_*", "msgs", "*.blk"))
	if err != nil {
		return err
	}
	injected := map[string]int{}
	for _, f := range files {
		content, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		records := heldRecord.FindAllIndex(content, -1)
		s.Dice.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
		for _, at := range records[:min(len(records), 1+s.Dice.IntN(4))] {
			if err := disk.Flip(f, int64(at[0]+s.Dice.IntN(at[1]-at[0])), 1<<s.Dice.IntN(8)); err != nil {
				return err
			}
			injected[filepath.Base(filepath.Dir(filepath.Dir(f)))]++
		}
	}
	began := time.Now()
	wrong, err := damagedAt(ctx, s, n, began)
	if err != nil {
		return err
	}
	s.Figure("until all damage under a running node was found", time.Since(began))
	s.Figure("messages damaged under a running node, and found", fmt.Sprintf("%v, %v", injected, wrong))
	s.Promise(fmt.Sprint(injected) == fmt.Sprint(wrong), "%s was damaged at %v and found %v", n.Name, injected, wrong)
	return rebuild(ctx, s, n, wrong)
}
