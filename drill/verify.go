package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"yardmaster/drill/check"
)

// checkPatience is for all checks of a drill, once its jobs have ended.
const checkPatience = 4 * time.Minute

// check drains the yard and holds what it says against what others know.
func (s *Stage) check(ctx context.Context) error {
	if err := s.Await(ctx, s.loads...); err != nil {
		s.Promise(false, "not all jobs end: %v", err) // the judge says which
	}
	s.Say("drained")
	// Also when the drain took all the time there was.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkPatience)
	defer cancel()
	v, err := s.Judge(ctx, s.loads...)
	if err != nil {
		return fmt.Errorf("judge: %w", err)
	}
	s.Say("judged")
	s.report.Verdict, s.report.Refusals = &v, v.Refusals
	for _, flaw := range slices.Concat(v.Flaws(), v.unjustified) {
		s.Promise(false, "%s", flaw)
	}
	if most := v.MostAtOnce[LimitedQueue]; most > Strict {
		s.Promise(false, "%d jobs of a queue with the limit %d ran at once", most, Strict)
	}
	s.judgeSmooth(&v)
	for reason, n := range v.reasons {
		s.Figure("overlaps because "+reason, n)
	}
	s.Figure("longest time from a kill to the next end", v.Recovery)
	s.Figure("longest time between two ends under load", v.EndGap)
	s.gaps(v.begins)
	s.decisions(&v.told)
	s.honesty(v.begins)
	if err := s.sameStory(ctx, &v); err != nil {
		return err
	}
	s.usage(ctx)
	s.level(ctx)
	up := s.Up()
	s.lastOrphans(up)
	s.Say("%s", v.String())
	return s.replicas(ctx, up)
}

// catchUp is how long a replica that was away may lag behind once all is healed
// and drained.
const catchUp = time.Minute

// level waits until all members have current copies of the streams, if all run.
func (s *Stage) level(ctx context.Context) {
	if up := s.Up(); len(up) == 1 || len(up) < len(s.Nodes) {
		return
	}
	soon, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	began := time.Now()
	err := s.InStep(soon)
	s.Promise(err == nil, "%v", err)
	s.Figure("all copies are current after", time.Since(began))
}

// sameStory holds history, read through every node, against what the nodes
// show, and their ledgers against each other.
func (s *Stage) sameStory(ctx context.Context, v *Verdict) error {
	began := time.Now()
	for _, n := range s.Up() {
		// A replica that was away may have to catch up first.
		soon, cancel := context.WithTimeout(ctx, catchUp)
		var told history
		err := until(soon, "history is whole through "+n.Name, func() (err error) {
			if told, err = readHistory(soon, n); err == nil && len(told.ends) < len(v.told.ends) {
				err = fmt.Errorf("%d ends; another node had %d", len(told.ends), len(v.told.ends))
			}
			return err
		})
		cancel()
		s.Promise(err == nil, "%v", err)
		s.Promise(told.gaps == 0 && told.twice == 0, "read through %s, history has %d gaps and %d ends told twice", n.Name, told.gaps, told.twice)
	}
	s.Figure("history is whole through every node after", time.Since(began))
	s.Say("history was read through every node")
	book, err := s.Recount(ctx)
	s.Promise(err == nil, "history and the nodes tell different stories: %v", err)
	if err == nil && v.Lost == 0 {
		_, err = s.RequireSameEnds(ctx, book, s.loads...)
		s.Promise(err == nil, "a node and history differ about a job: %v", err)
	}
	index, err := s.RequireSameLedger(ctx)
	s.Promise(err == nil, "ledgers differ: %v", err)
	s.Figure("ledgers are equal at index", index)
	return nil
}

// decisions holds what was decided against one order of it: the leases of the
// authority, and the queues that several wrote at once.
func (s *Stage) decisions(told *history) {
	for _, wrong := range check.Leases(told.leases, s.watch.views) {
		s.Promise(false, "authority: %s", wrong)
	}
	for _, sp := range s.spans {
		n := told.acquired(sp.from, sp.til)
		s.Figure(sp.name+": changes of authority", n)
		s.Promise(n <= sp.most, "%s: authority changed %d times", sp.name, n)
	}
	if len(s.contest.changes) == 0 {
		return
	}
	ok, undecided := check.Decided(s.contest.changes)
	answers := make(map[check.Answer]int)
	for _, c := range s.contest.changes {
		answers[c.Answer]++
	}
	s.Promise(answers[check.Done] > 0 && answers[check.Refused] > 0, "of %d changes to queues %d were done and %d refused", len(s.contest.changes), answers[check.Done], answers[check.Refused])
	if !ok {
		text, _ := json.MarshalIndent(s.contest.changes, "", " ") // plain numbers and texts
		_ = os.WriteFile(filepath.Join(s.Dir, "contest.json"), text, 0o600)
	}
	s.Promise(ok || undecided, "no order of the changes to the queues explains all answers")
	s.Figure("changes to the same queues by several writers", fmt.Sprintf("%d, %d of them without an answer, in one order: %s",
		len(s.contest.changes), answers[check.Unknown], map[bool]string{true: "not found out in time", false: fmt.Sprint(ok)}[undecided]))
}

// honesty: whoever calls itself ready while no job begins says so wrongly.
func (s *Stage) honesty(begins []int64) {
	const still, grace = 8 * time.Second, 6 * time.Second // the lease, and the time to hear of it
	if len(s.faults) == 0 || len(s.watch.looks) == 0 {
		return
	}
	stills := check.Stills(begins, still, s.faults[0].at, s.ended)
	wrong := check.Honest(stills, s.watch.looks, grace)
	for _, w := range wrong {
		s.Promise(false, "%s", w)
	}
	if len(wrong) > 0 {
		_ = s.watch.keep(filepath.Join(s.Dir, "looks.jsonl")) // it is for whoever looks for the reason
	}
	if len(stills) > 0 {
		reasons := make(map[string]bool)
		for _, l := range s.watch.looks {
			for _, at := range stills {
				if !l.Ready && l.At > at.From && l.At < at.Til {
					reasons[l.Reasons] = true
				}
			}
		}
		var all []string
		for r := range reasons {
			all = append(all, r)
		}
		slices.Sort(all)
		s.Figure(fmt.Sprintf("nodes said %d times why no job began for more than %s", len(stills), still), strings.Join(all[:min(len(all), 5)], " / "))
	}
}

// lastOrphans kills all nodes and looks for what they leave.
func (s *Stage) lastOrphans(nodes []*Node) {
	s.Kill(nodes...)
	s.orphans.done.Wait()
	s.Figure("orphans 2 s after a kill", len(s.orphans.left))
	for _, o := range s.orphans.left {
		s.Promise(false, "a process outlives its node: %s", o)
	}
}
