package sim

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Step is one event of a plan that is given as text instead of drawn at random.
type Step struct {
	At    time.Duration // from the start of the run, or from the start of the job When
	When  string        // key of a job; "": none
	event string        // as in the documentation of ParsePlan
	args  []string
	lasts time.Duration
}

// ParsePlan parses a plan in text form. Lines that begin with '#' are comments. One
// line is "seed N"; the seed determines only how long messages and disks take.
// After a line "when KEY", times count from the moment when that job starts running.
// Every other line is a time and an event:
//
//	1.5s enqueue QUEUE KEY DURATION   a job whose first attempt runs for DURATION; 0s: a random time
//	2s cancel KEY                     a caller cancels the job
//	2s part KEY                       the job's worker loses its connection and continues
//	2s bring KEY away|home            the worker resumes the job at the next node, or where it started
//	2s crash NODE DURATION            the node crashes and starts again after DURATION
//	2s freeze NODE DURATION           the node's process is paused
//	2s cut NODE DURATION              the network between the node and the others is cut
//	2s stick NODE DURATION            the node's disk accepts no writes
//	2s late NODE DURATION             what is sent to the node in the next 3 s arrives DURATION later
//	2s depose NODE                    another node is elected leader, if the node leads
//
// NODE is a node's name, @KEY for the node where that job is running, >KEY for the one
// to which "bring KEY away" would take it, or "leader".
// Such a plan has no other faults, jobs or callers.
func ParsePlan(text string) (Plan, error) {
	p := Plan{MajorOnly: true, NoCallers: true, Lasts: map[job.ID]time.Duration{}}
	lines, when := bufio.NewScanner(strings.NewReader(text)), ""
	for number := 1; lines.Scan(); number++ {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || strings.HasPrefix(words[0], "#") {
			continue
		}
		var err error
		switch words[0] {
		case "seed":
			p.Seed, err = strconv.ParseUint(words[1], 10, 64)
		case "when":
			when = words[1]
		default:
			err = p.addStep(when, words)
		}
		if err != nil {
			return Plan{}, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if p.Seed == 0 || p.Jobs == 0 {
		return Plan{}, errors.New("a plan needs a seed other than 0 and at least one enqueue")
	}
	return p, nil
}

// events holds the number of arguments of each event, and whether the last one is a
// duration.
var events = map[string]struct {
	words int
	timed bool
}{
	"enqueue": {3, true}, "cancel": {1, false}, "part": {1, false}, "bring": {2, false}, "crash": {2, true},
	"freeze": {2, true}, "cut": {2, true}, "stick": {2, true}, "late": {2, true}, "depose": {1, false},
}

// addStep parses a line with a time and an event.
func (p *Plan) addStep(when string, words []string) (err error) {
	s := Step{When: when, event: words[1], args: words[2:]}
	if s.At, err = time.ParseDuration(words[0]); err != nil {
		return err
	}
	form, known := events[s.event]
	if !known || len(s.args) != form.words {
		return fmt.Errorf("unknown event %q with %d arguments", s.event, len(s.args))
	}
	if form.timed {
		if s.lasts, err = time.ParseDuration(s.args[form.words-1]); err != nil {
			return err
		}
	}
	if s.event == "enqueue" {
		id, err := job.KeyID(s.args[0], s.args[1])
		if err != nil {
			return err
		}
		p.Jobs++
		p.Lasts[id] = s.lasts
	}
	p.Steps = append(p.Steps, s)
	return nil
}

// begin schedules the plan's steps.
func (p *Plan) begin(sim *simulation) {
	for i, s := range p.Steps {
		key := fmt.Sprintf("step %d", i)
		sim.afterStart(s.When, key, func() {
			sim.after(s.At, key, func() {
				sim.trace("plan: %s %s", s.event, strings.Join(s.args, " "))
				sim.step(s)
			})
		})
	}
}

// afterStart calls do as soon as the job with a key runs, or now if key is "".
func (sim *simulation) afterStart(key, name string, do func()) {
	if key == "" || sim.find(key) != nil {
		do()
		return
	}
	sim.after(time.Millisecond, name, func() { sim.afterStart(key, name, do) })
}

// step executes one step.
func (sim *simulation) step(s Step) {
	switch s.event {
	case "enqueue":
		sim.producers.enqueue(s.args[0], s.args[1], []byte(`{"params":{}}`))
	case "cancel":
		if leader := sim.raft.leader; leader != nil {
			sim.callers.do(leader, &ledger.CancelJob{Job: sim.checker.jobs[s.args[0]], Reason: "asked"})
		}
	case "part":
		if r := sim.mustFind(s.args[0]); r != nil {
			r.lose(sim)
		}
	case "bring":
		if r := sim.mustFind(s.args[0]); r != nil {
			sim.bring(r, sim.resumeTarget(r, s.args[1]).process, func() {})
		}
	case "depose":
		if leader := sim.raft.leader; leader != nil && leader.node == sim.nodeByName(s.args[0]) {
			sim.raft.elect(leader)
		}
	default:
		if n := sim.nodeByName(s.args[0]); n != nil {
			sim.injectNamed(s.event, n, s.lasts)
		}
	}
}

// injectNamed injects the fault of a plan's event into a node.
func (sim *simulation) injectNamed(event string, n *node, lasts time.Duration) {
	switch event {
	case "crash":
		sim.crash(n, lasts)
	case "freeze":
		sim.freeze(n, lasts)
	case "stick":
		sim.stick(n, lasts)
	case "late":
		sim.net.late[n.name] = lateness{until: time.Now().Add(3 * time.Second), by: lasts}
	case "cut":
		sim.isolate(n, lasts)
	}
}

// nodeByName returns the node that NODE in a plan refers to. Without such a node it
// fails the run and returns nil.
func (sim *simulation) nodeByName(name string) *node {
	if place := name[0]; place == '@' || place == '>' {
		switch r := sim.mustFind(name[1:]); {
		case r == nil:
			return nil
		case place == '@':
			return r.process.node
		default:
			return sim.resumeTarget(r, "away")
		}
	}
	if leader := sim.raft.leader; name == "leader" && leader != nil {
		return leader.node
	}
	for _, n := range sim.nodes {
		if n.name == name {
			return n
		}
	}
	sim.fail("unknown node %q in the plan", name)
	return nil
}

// resumeTarget returns the node at which the step "bring" resumes a job.
func (sim *simulation) resumeTarget(r *jobRun, where string) *node {
	if where == "home" {
		for k, first := range sim.checker.runs {
			if k.id == r.Job && k.n == r.N && !first.adopted {
				return first.process.node
			}
		}
	}
	return sim.nodes[(slices.Index(sim.nodes, r.process.node)+1)%members]
}

// find returns the running execution of the job with a key, or nil.
func (sim *simulation) find(key string) *jobRun {
	for _, r := range sim.checker.runs {
		if r.Job == sim.checker.jobs[key] && !r.ended {
			return r
		}
	}
	return nil
}

// mustFind is find. If the job does not run, the run ends without having tried the plan: the job
// may, for example, wait for its retry with this seed.
func (sim *simulation) mustFind(key string) *jobRun {
	if r := sim.find(key); r != nil {
		return r
	}
	sim.mu.Lock()
	sim.report.Untried = fmt.Sprintf("the plan needs the worker of %s, which does not run", key)
	sim.mu.Unlock()
	sim.cancel()
	return nil
}
