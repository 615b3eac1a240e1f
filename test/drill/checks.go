package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/drill/check"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// checkTimeout limits all checks of a drill together, once its jobs have ended.
const checkTimeout = 4 * time.Minute

// check waits until all jobs have ended, and then checks every promise that all
// drills have in common. It ends with all nodes killed.
func (h *Harness) check() {
	if err := h.Await(h.Ctx, h.loads...); err != nil {
		h.Require(false, "not all jobs have ended: %v", err) // Judge counts them
	}
	h.Logf("all jobs have ended")
	// A new time limit: waiting may have used up the old one.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Ctx), checkTimeout)
	defer cancel()
	h.Ctx = ctx
	v := must.Get(h.Judge(ctx, h.loads...))
	h.Logf("outcomes, history and witnesses compared")
	h.report.Verdict, h.report.Refusals = &v, v.Refusals
	for _, flaw := range slices.Concat(v.Flaws(), v.unjustified) {
		h.Require(false, "%s", flaw)
	}
	if n := v.MaxConcurrent[LimitedQueue]; n > Strict {
		h.Require(false, "%d jobs of a queue with the limit %d ran concurrently", n, Strict)
	}
	h.checkLimits(&v)
	h.checkNoRetries(&v)
	for reason, n := range v.reasons {
		h.Figure("overlaps with the reason "+reason, n)
	}
	h.Figure("longest time from a kill to the next end", v.Recovery)
	h.Figure("longest time between two ends under load", v.LongestOutcomeGap)
	h.measureGaps(v.starts)
	h.checkDecisions(&v.events)
	h.checkReadiness(v.starts)
	h.checkHistory(&v)
	h.checkUsage()
	h.awaitReplicas()
	running := h.Running()
	held := must.Get(h.readHeld(h.Ctx))
	h.checkOrphans(running)
	h.Logf("%s", v.String())
	h.checkReplicas(running, held)
}

// catchUpTimeout is how long a replica may lag behind after all faults are healed
// and all jobs have ended.
const catchUpTimeout = time.Minute

// awaitReplicas waits until the streams' replicas on all members are current. It
// does nothing unless all nodes are running.
func (h *Harness) awaitReplicas() {
	if running := h.Running(); len(running) == 1 || len(running) < len(h.Nodes) {
		return
	}
	limited, cancel := context.WithTimeout(h.Ctx, catchUpTimeout)
	defer cancel()
	began := time.Now()
	err := h.AwaitMembersInSync(limited)
	h.Require(err == nil, "%v", err)
	h.Figure("all replicas are current after", time.Since(began))
}

// checkHistory checks that every node shows the same complete history, that
// history agrees with the state of the nodes, and that all ledgers are equal.
func (h *Harness) checkHistory(v *Verdict) {
	began := time.Now()
	for _, n := range h.Running() {
		// A replica that was cut off may have to catch up first.
		limited, cancel := context.WithTimeout(h.Ctx, catchUpTimeout)
		var got history
		err := until(limited, "history is complete through "+n.Name, func() (err error) {
			if got, err = readHistory(limited, n); err == nil && len(got.ends) < len(v.events.ends) {
				err = fmt.Errorf("it has %d ends of dispatches; another node had %d", len(got.ends), len(v.events.ends))
			}
			return err
		})
		cancel()
		h.Require(err == nil, "%v", err)
		h.Require(got.eventGaps == 0 && got.duplicates == 0, "history read through %s has %d gaps and %d duplicate ends", n.Name, got.eventGaps, got.duplicates)
	}
	h.Figure("history is complete through every node after", time.Since(began))
	h.Logf("history was read through every node")
	checker, err := h.CheckContract(h.Ctx)
	h.Require(err == nil, "history and the snapshots of the nodes differ: %v", err)
	if err == nil && v.Lost == 0 {
		_, err = h.RequireSameOutcomes(h.Ctx, checker, h.loads...)
		h.Require(err == nil, "history and a node differ about a job: %v", err)
	}
	index, err := h.RequireSameLedger(h.Ctx)
	h.Require(err == nil, "ledgers differ: %v", err)
	h.Figure("ledgers are equal at index", index)
}

// checkDecisions checks that decisions follow a single order: the leases of the
// authority, and the operations of concurrent writers on the same queues.
func (h *Harness) checkDecisions(events *history) {
	for _, wrong := range check.Leases(events.leases, h.observer.views()) {
		h.Require(false, "authority: %s", wrong)
	}
	for _, l := range h.authorityLimits {
		n := events.acquired(l.from, l.to)
		h.Figure(l.name+": changes of authority", n)
		h.Require(n <= l.max, "%s: the authority changed %d times, want at most %d", l.name, n, l.max)
	}
	if len(h.contention.changes) == 0 {
		return
	}
	ok, undecided := check.Linearizable(h.contention.changes)
	answers := make(map[check.Answer]int)
	for _, c := range h.contention.changes {
		answers[c.Answer]++
	}
	h.RequireTried(answers[check.Done] > 0 && answers[check.Refused] > 0, "of %d changes to queues %d were done and %d refused", len(h.contention.changes), answers[check.Done], answers[check.Refused])
	if !ok {
		text, _ := json.MarshalIndent(h.contention.changes, "", " ") // cannot fail
		_ = os.WriteFile(filepath.Join(h.Dir, "contest.json"), text, 0o600)
	}
	h.Require(ok || undecided, "no order of the concurrent changes to queues explains all answers")
	h.Figure("concurrent changes to the same queues", fmt.Sprintf("%d, of which %d without an answer; explained by one order: %s",
		len(h.contention.changes), answers[check.Unknown], map[bool]string{true: "not decided in time", false: fmt.Sprint(ok)}[undecided]))
}

// checkReadiness checks that no node reported itself ready while no job began.
func (h *Harness) checkReadiness(begins []int64) {
	const minGap, grace = 8 * time.Second, 6 * time.Second // grace: a lease, and the time to learn of its end
	samples := h.observer.samples()
	if len(h.faults) == 0 || len(samples) == 0 {
		return
	}
	gaps := check.Gaps(begins, minGap, h.faults[0].at, h.loadsEndedAt)
	wrong := check.ReadinessErrors(gaps, samples, grace)
	for _, w := range wrong {
		h.Require(false, "%s", w)
	}
	if len(wrong) > 0 {
		_ = h.observer.writeFile(filepath.Join(h.Dir, "samples.jsonl")) // to find the cause
	}
	if len(gaps) > 0 {
		reasons := make(map[string]bool)
		for _, s := range samples {
			for _, gap := range gaps {
				if !s.Ready && s.At > gap.From && s.At < gap.To {
					reasons[s.Reasons] = true
				}
			}
		}
		all := slices.Sorted(maps.Keys(reasons))
		h.Figure(fmt.Sprintf("reasons that nodes reported during %d gaps of more than %s", len(gaps), minGap), strings.Join(all[:min(len(all), 5)], " / "))
	}
}

// checkOrphans kills the nodes and checks that no process started by any killed
// node is left.
func (h *Harness) checkOrphans(nodes []*Node) {
	h.Kill(nodes...)
	h.orphans.done.Wait()
	h.Figure("orphans 2 s after a kill", len(h.orphans.left))
	for _, o := range h.orphans.left {
		h.Require(false, "process outlives its node: %s", o)
	}
}

// usage is the resource usage of a node's process.
type usage struct {
	descriptors int
	threads     int
	memory      int64 // bytes
}

func usageOf(n *Node) usage {
	p := procstat.PID(n.PID())
	return usage{p.Descriptors(), p.Threads(), p.Memory()}
}

// moreDescriptors is how many more files and sockets a node may have open at the end
// than at the beginning: streams that were read have open files, and connections of
// the checks may not be closed yet.
const moreDescriptors = 64

// recordUsage records the resource usage of all nodes before the load.
func (h *Harness) recordUsage() {
	h.baselines = make(map[string]usage)
	for _, n := range h.Running() {
		h.baselines[n.Name] = usageOf(n)
	}
}

// checkUsage kills the workers and waits until the number of files and sockets that
// each node has open is back near the recorded one.
func (h *Harness) checkUsage() {
	for _, w := range h.workers {
		w.Kill()
	}
	limited, cancel := context.WithTimeout(h.Ctx, 20*time.Second)
	defer cancel()
	for _, n := range h.Running() {
		before, recorded := h.baselines[n.Name]
		if !recorded {
			continue
		}
		err := until(limited, n.Name+" has closed files and sockets", func() error {
			if now := usageOf(n); now.descriptors > before.descriptors+moreDescriptors {
				return fmt.Errorf("%d are open, %d were before the load", now.descriptors, before.descriptors)
			}
			return nil
		})
		h.Require(err == nil, "%v", err)
		now := usageOf(n)
		h.Figure(n.Name+" at the end (before the load)", fmt.Sprintf("%d (%d) descriptors, %d (%d) threads, %d (%d) MB",
			now.descriptors, before.descriptors, now.threads, before.threads, now.memory>>20, before.memory>>20))
	}
}

// orphans finds processes that outlive the node that started them.
type orphans struct {
	done sync.WaitGroup
	mu   sync.Mutex
	left []string
}

// orphanGrace is how long processes may outlive a killed node.
const orphanGrace = 2 * time.Second

// expect records, after orphanGrace, which of these processes still exist. They must
// have been started by n.
func (o *orphans) expect(n *Node, tree []procstat.PID) {
	started := make(map[procstat.PID]string)
	for _, pid := range tree {
		started[pid] = pid.StartTime()
	}
	o.done.Go(func() {
		time.Sleep(orphanGrace)
		for pid, at := range started {
			if at == "" || pid.StartTime() != at {
				continue // exited; the pid may be in use again
			}
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // "" if it exits now
			o.mu.Lock()
			o.left = append(o.left, fmt.Sprintf("%d of %s: %s", pid, n.Name, bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
			o.mu.Unlock()
		}
	})
}

// Kill kills nodes simultaneously with SIGKILL, and later checks that the processes
// they had started are gone.
func (h *Harness) Kill(nodes ...*Node) {
	trees := make([][]procstat.PID, len(nodes))
	for i, n := range nodes {
		trees[i] = n.Tree()
	}
	h.Cluster.Kill(nodes...)
	for i, n := range nodes {
		h.orphans.expect(n, trees[i])
	}
}

// Tree returns the node's process and all its descendants.
func (n *Node) Tree() []procstat.PID { return procstat.PID(n.PID()).Tree() }

// Exiting reports whether the node's process has exited, or is exiting while threads
// wait in the kernel for a disk.
func (n *Node) Exiting() bool { return !n.Running() || procstat.PID(n.PID()).Exiting() }

// CutPower simulates a simultaneous loss of power of nodes and their disks: data
// that was not synced is lost. [Harness.Heal] starts the nodes again.
func (h *Harness) CutPower(nodes ...*Node) {
	for _, n := range nodes { // no node must see its disk fail
		must.Do(n.Signal(syscall.SIGSTOP))
	}
	for _, n := range nodes {
		must.Do(n.Disk.ShutDown())
	}
	h.Cluster.Kill(nodes...)
	for _, n := range nodes {
		must.Do(n.Disk.Cut())
	}
}

// faultWindow is the time after a fault in which gaps are attributed to it.
const faultWindow = 30 * time.Second

// quietPeriod is the time before the end of the loads in which gaps do not count,
// because the load decreases.
const quietPeriod = 100 * time.Millisecond

// measureGaps measures, around every fault, the longest times in which no job began
// and in which none was acknowledged, and compares them with the targets.
func (h *Harness) measureGaps(begins []int64) {
	var acks []int64
	for _, l := range h.loads {
		acks = append(acks, l.acks...)
	}
	slices.Sort(begins)
	slices.Sort(acks)
	dispatch, ack := make(map[string][]time.Duration), make(map[string][]time.Duration)
	var kinds []string
	for i, f := range h.faults {
		until := min(f.at+int64(faultWindow), h.loadsEndedAt-int64(quietPeriod))
		if i+1 < len(h.faults) {
			until = min(until, h.faults[i+1].at)
		}
		if !slices.Contains(kinds, f.what) {
			kinds = append(kinds, f.what)
		}
		dispatch[f.what] = append(dispatch[f.what], longest(begins, f.at, until))
		ack[f.what] = append(ack[f.what], longest(acks, f.at, until))
	}
	for _, k := range kinds {
		g := Gaps{Fault: k, Times: len(dispatch[k]), Dispatch: spread(dispatch[k]), Ack: spread(ack[k])}
		if l, ok := h.targets[k]; ok {
			g.Limits = &l
			if l.Dispatch > 0 {
				h.Target(k+": dispatch gap p99", time.Duration(g.Dispatch.P99)*time.Millisecond, l.Dispatch)
			}
			if l.Ack > 0 {
				h.Target(k+": acknowledgement gap p99", time.Duration(g.Ack.P99)*time.Millisecond, l.Ack)
			}
		}
		h.report.Gaps = append(h.report.Gaps, g)
	}
}

// longest returns the longest time between two consecutive moments that ends after
// from and begins before until. The moments must be sorted.
func longest(moments []int64, from, until int64) (gap time.Duration) {
	first, _ := slices.BinarySearch(moments, from)
	for i := max(first, 1); i < len(moments) && moments[i-1] < until; i++ {
		gap = max(gap, time.Duration(moments[i]-moments[i-1]))
	}
	return gap
}
