package wallclock

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// Warnings of readiness.
const (
	timeAhead  = "ahead of the members' clocks, because they were ahead before"
	setBack    = "the members' clocks were set back by "
	setForward = "the members' clocks were set forward by "
)

// TestYard_StartedAhead starts a node for the first time with a clock that is two hours ahead, and again
// when it is right.
func TestYard_StartedAhead(t *testing.T) {
	y := newYard(t, 1)
	y.set(2 * time.Hour)
	y.launch()
	y.work()
	y.addCron()
	y.check("ahead", y.promises(time.Second)...)
	y.ticking("ahead", 2*time.Hour)
	y.halt()
	y.set(0)
	y.launch()
	hour := y.hour()
	promises := append(y.promises(5*time.Second), y.runAt(5*time.Second))
	y.warned(timeAhead)
	y.metric("yard_time_ahead_seconds", 2*time.Hour, 5*time.Minute)
	y.ticking("set right", 0)
	y.check("set right", promises...)
	hour("set right")
}

// TestYard_Steps sets the clock of a node that runs.
func TestYard_Steps(t *testing.T) {
	y := newYard(t, 1)
	y.launch()
	y.work()
	y.addCron()
	y.ticking("at first", 0)
	hour := y.hour()
	was, furthest := time.Duration(0), time.Duration(0)
	for _, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
		what := fmt.Sprintf("from %s to %s ahead", was, ahead)
		promises := y.promises(3 * time.Second)
		y.set(ahead)
		warning := setBack
		if ahead > was {
			warning = setForward
		}
		furthest = max(furthest, ahead)
		y.metric("yard_time_ahead_seconds", furthest-ahead, 5*time.Minute) // the step is noticed; the warning may be that of an earlier one
		y.warned(warning + "1h")
		promises = append(promises, y.promises(3*time.Second)...)
		if ahead == 0 {
			promises = append(promises, y.runAt(3*time.Second))
		}
		y.ticking(what, ahead)
		y.check(what, promises...)
		hour(what)
		was = ahead
	}
}

// TestYard_Members has a member with a wrong clock become the authority, and sets the clocks of all
// members, also while the authority is handed over.
func TestYard_Members(t *testing.T) {
	y := newYard(t, 3)
	y.launch()
	y.work()
	y.addCron()
	y.ticking("at first", 0)
	hour := y.hour()

	wrong := y.follower()
	promises := append(y.promises(5*time.Second), y.runAt(5*time.Second))
	y.set(time.Hour, wrong)
	y.offset(wrong, time.Hour)
	y.transfer(wrong)
	y.offset(wrong, time.Hour) // also by the new authority
	promises = append(promises, append(y.promises(3*time.Second), y.runAt(3*time.Second))...)
	y.ticking("an authority with a wrong clock", 0)
	y.check("an authority with a wrong clock", promises...)
	y.set(0, wrong)
	y.offset(wrong, 0)

	promises = y.promises(5 * time.Second)
	y.set(2 * time.Hour)
	y.warned(setForward + "2h")
	y.ticking("all ahead", 2*time.Hour)
	promises = append(promises, y.promises(3*time.Second)...)
	y.set(0)
	y.warned(setBack + "2h")
	y.warned(timeAhead)
	y.metric("yard_time_ahead_seconds", 2*time.Hour, 5*time.Minute)
	promises = append(promises, append(y.promises(3*time.Second), y.runAt(3*time.Second))...)
	y.ticking("all set right", 0)
	y.check("all set right", promises...)

	promises = y.promises(3 * time.Second)
	transferred := make(chan struct{})
	to := y.follower()
	go func() { defer close(transferred); y.transferTo(to) }()
	y.set(-time.Hour)
	<-transferred
	promises = append(promises, y.promises(3*time.Second)...)
	y.ticking("set back during a transfer", -time.Hour)
	y.set(0)
	y.transfer(y.follower())
	promises = append(promises, append(y.promises(3*time.Second), y.runAt(5*time.Second))...)
	y.ticking("set right before a transfer", 0)
	y.check("set during transfers", promises...)
	hour("set during transfers")
}

// follower returns a member that is not the authority.
func (y *yard) follower() (found *procs.Node) {
	y.t.Helper()
	y.await("there is an authority", func() error {
		authority, err := y.Authority(y.ctx)
		if err == nil {
			found = y.Nodes[(slices.Index(y.Nodes, authority)+1)%len(y.Nodes)]
		}
		return err
	})
	return found
}

// transfer hands the authority over to a member, and waits until it has it.
func (y *yard) transfer(to *procs.Node) {
	y.t.Helper()
	y.transferTo(to)
	y.await(to.Name+" has the authority", func() error {
		authority, err := y.Authority(y.ctx)
		if err == nil && authority != to {
			err = fmt.Errorf("%s has it", authority.Name)
		}
		return err
	})
}

// transferTo asks for a transfer of the authority. Any goroutine may call it.
func (y *yard) transferTo(to *procs.Node) {
	request, _ := json.Marshal(api.MemberRequest{To: to.Name})
	ctx, cancel := context.WithTimeout(y.ctx, factTimeout)
	defer cancel()
	err := y.Until(ctx, "the authority is transferred", func() error {
		_, err := to.Request(ctx, api.SubjectAPI+".cluster.transfer", request)
		return err
	})
	if err != nil {
		y.t.Error(err)
	}
}

// offset waits until status and metrics show that a member's clock is ahead, and readiness names it.
func (y *yard) offset(n *procs.Node, ahead time.Duration) {
	y.t.Helper()
	y.await(fmt.Sprintf("%s is shown to be %s ahead", n.Name, ahead), func() error {
		s, err := y.Nodes[0].Status(y.ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.Nodes, func(m api.NodeStatus) bool { return m.Name == n.Name })
		if i < 0 || s.Nodes[i].ClockOffsetMS == nil {
			return fmt.Errorf("no offset of %s", n.Name)
		}
		got := time.Duration(*s.Nodes[i].ClockOffsetMS) * time.Millisecond
		named := strings.Contains(strings.Join(s.Readiness.Reasons, "\n"), "member "+n.Name+"'s clock is off by")
		if (got-ahead).Abs() > 2*time.Second || named != (ahead != 0) {
			return fmt.Errorf("it is %s, readiness %q", got, s.Readiness.Reasons)
		}
		return nil
	})
	y.metric(fmt.Sprintf("yard_member_clock_offset_seconds{member=%q}", n.Name), ahead, 2*time.Second)
}
