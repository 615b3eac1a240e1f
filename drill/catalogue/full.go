package catalogue

import (
	"context"
	"slices"
	"strings"
	"time"

	"yardmaster/drill"
)

// Disks that fill up. A node refuses below a tenth of free room, and decides no
// more below a twentieth.
const (
	smallDisk = 1 << 30
	low       = smallDisk * 75 / 1000 // between the two marks
	out       = smallDisk * 25 / 1000 // below both
)

var full = []drill.Drill{{
	Number: 15, Name: "disk-full", Breaks: "fill the disk of one node, of the authority, to the last byte, and of all",
	Promises: "jobs are refused before anything is damaged, the others take them; free space is all it takes to go on",
	Plan:     drill.Plan{Disk: smallDisk, Config: "[raft]\nsnapshot_bytes = 1048576\n"}, Patience: 12 * time.Minute,
	Run: func(ctx context.Context, s *drill.Stage) error {
		return rounds(ctx, s, 1, func(authority *drill.Node) error {
			if err := fillOne(ctx, s, other(s, authority), low, "the disk of a node is low"); err != nil {
				return err
			}
			if err := fillAuthority(ctx, s); err != nil {
				return err
			}
			if err := fillAll(ctx, s); err != nil {
				return err
			}
			return fillToTheEnd(ctx, s)
		})
	},
}}

// says tells whether a node's readiness has a reason about its disk.
func says(ctx context.Context, n, about *drill.Node) bool {
	st, err := n.Status(ctx)
	return err == nil && slices.ContainsFunc(st.Readiness.Reasons, func(r string) bool {
		return strings.Contains(r, about.Name) && (strings.Contains(r, "free space") || strings.Contains(r, "room"))
	})
}

// fillOne leaves a node so many bytes: it says so, and the others take jobs.
func fillOne(ctx context.Context, s *drill.Stage, n *drill.Node, left int64, what string) error {
	s.Fault(what, n.Name)
	if err := n.Disk.Fill(left); err != nil {
		return err
	}
	s.Promise(within(ctx, 15*time.Second, func() bool { return says(ctx, n, n) }), "%s does not say that its disk is full", n.Name)
	acked := s.Acked()
	s.Promise(within(ctx, 15*time.Second, func() bool { return s.Acked() > acked+50 }), "no jobs are taken while %s", what)
	return freed(ctx, s, n)
}

// freed gives the room back: without a restart, all is as before.
func freed(ctx context.Context, s *drill.Stage, nodes ...*drill.Node) error {
	for _, n := range nodes {
		if err := n.Disk.Empty(); err != nil {
			return err
		}
	}
	began, acked := time.Now(), s.Acked()
	for _, n := range nodes {
		s.Promise(n.Running(), "%s has ended", n.Name)
	}
	patience, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := s.WaitReady(patience)
	s.Promise(err == nil, "freeing space was not enough: %v", err)
	s.Promise(within(ctx, 30*time.Second, func() bool { return s.Acked() > acked+50 }), "no jobs are taken after space was freed")
	s.Figure("from freed space to all nodes ready", time.Since(began))
	return ctx.Err()
}

// fillAuthority leaves the node that decides next to nothing: another one is to
// decide.
func fillAuthority(ctx context.Context, s *drill.Stage) error {
	n, err := s.AwaitAuthority(ctx)
	if err != nil {
		return err
	}
	s.Fault("the disk of the authority is out", n.Name)
	if err := n.Disk.Fill(out); err != nil {
		return err
	}
	began := time.Now()
	patience, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	next, err := s.AwaitOther(patience, n)
	s.Promise(err == nil, "%s decides on although its disk is out: %v", n.Name, err)
	if err == nil {
		s.Target("from a full disk to another authority", time.Since(began), 10*time.Second)
		s.Say("%s decides now", next.Name)
	}
	return freed(ctx, s, n)
}

// fillAll leaves every node little: jobs are refused, and soon.
func fillAll(ctx context.Context, s *drill.Stage) error {
	s.Fault("the disks of all are low", "at once")
	for _, n := range s.Nodes {
		if err := n.Disk.Fill(low); err != nil {
			return err
		}
	}
	n := anyone(s)
	s.Promise(within(ctx, 15*time.Second, func() bool { return says(ctx, n, n) }), "%s does not say that the disks are full", n.Name)
	var answer any
	began := time.Now()
	var err error
	closed := within(ctx, 15*time.Second, func() bool {
		began = time.Now()
		err = n.Ask(ctx, "yard.enqueue.probe", map[string]any{"function": "probe"}, &answer)
		return err != nil && strings.Contains(err.Error(), "room")
	})
	s.Promise(closed, "jobs are taken on full disks")
	s.Target("from a job to its refusal", time.Since(began), 2*time.Second)
	s.Say("jobs are refused: %v", err)
	return freed(ctx, s, s.Nodes...)
}

// fillToTheEnd leaves a node nothing at all: whatever becomes of it, it comes
// back with what it had once there is room.
func fillToTheEnd(ctx context.Context, s *drill.Stage) error {
	n := anyone(s)
	s.Fault("a disk is full to the last byte", n.Name)
	if err := n.Disk.Fill(0); err != nil {
		return err
	}
	acked := s.Acked()
	s.Promise(within(ctx, 30*time.Second, func() bool { return s.Acked() > acked+50 }), "no jobs are taken while a disk is full")
	if err := s.Rest(ctx, 5*time.Second); err != nil {
		return err
	}
	s.Say("%s goes on: %t", n.Name, n.Running())
	if err := n.Disk.Empty(); err != nil {
		return err
	}
	if within(ctx, time.Second, func() bool { return !n.Running() }) {
		return s.Heal(ctx) // as its supervisor does
	}
	return s.WaitReady(ctx)
}
