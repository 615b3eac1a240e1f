package catalogue

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"yardmaster/drill"
)

// damageGroups turns a bit of what the groups of some streams have agreed on, on one
// node while it is down: it has no part in those, says which, and is given it again.
func damageGroups(ctx context.Context, s *drill.Stage) error {
	n := anyone(s)
	s.Fault("damage", n.Name+": bits of the snapshots of streams' groups are turned")
	s.Kill(n)
	streams, err := turnGroups(s, n)
	if err != nil {
		return err
	}
	acked, began := s.Acked(), time.Now()
	if err := n.Start(); err != nil {
		return err
	}
	var named []string
	told := within(ctx, time.Minute, func() bool {
		named = unopened(ctx, s, n)
		return slices.Equal(named, streams)
	})
	s.Promise(told, "%s has no part in %q, and is said to have none in %q", n.Name, streams, named)
	s.Figure("until it was told which streams a node has no part in", time.Since(began))
	s.Promise(within(ctx, 20*time.Second, func() bool { return s.Acked() > acked+20 }), "no jobs are accepted while a node has no part in %q", streams)
	wrong := map[string]int{}
	for _, stream := range streams {
		wrong[stream] = 0
	}
	if err := rebuild(ctx, s, n, wrong); err != nil {
		return err
	}
	left := within(ctx, 30*time.Second, func() bool { return len(unopened(ctx, s, n)) == 0 })
	s.Promise(left, "%s is said to have no part in streams whose copies were made anew", n.Name)
	return s.Heal(ctx)
}

// turnGroups turns a bit in the snapshots of up to three groups, and gives their
// streams, in order.
func turnGroups(s *drill.Stage, n *drill.Node) (streams []string, err error) {
	groups, err := filepath.Glob(filepath.Join(n.DataDir, "nats", "jetstream", "$SYS", "_js_", "S-*"))
	if err != nil {
		return nil, err
	}
	s.Dice.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	for _, group := range groups {
		snapshots, err := filepath.Glob(filepath.Join(group, "snapshots", "snap.*"))
		if err != nil || len(snapshots) == 0 || len(streams) == s.Times(3) {
			continue
		}
		var about struct {
			Metadata struct{ Stream string }
		}
		text, err := os.ReadFile(filepath.Join(group, "meta.inf"))
		if err == nil {
			err = json.Unmarshal(text, &about)
		}
		for _, snapshot := range snapshots {
			if err == nil {
				err = turn(s, snapshot, 1)
			}
		}
		if err != nil {
			return nil, err
		}
		streams = append(streams, about.Metadata.Stream)
	}
	slices.Sort(streams)
	if len(streams) == 0 {
		return nil, fmt.Errorf("no group on %s has a snapshot", n.Name)
	}
	return streams, nil
}

var unopenedReason = regexp.MustCompile(`^node (\S+): its copy of (\S+) cannot be opened: .*; run 'yardmaster cluster rebuild (\S+) --node (\S+)'$`)

// unopened is in which streams a node has no part, by another one's word, which says
// what to type.
func unopened(ctx context.Context, s *drill.Stage, n *drill.Node) (streams []string) {
	for _, other := range s.Nodes {
		if other == n {
			continue
		}
		st, err := other.Status(ctx)
		if err != nil {
			continue
		}
		for _, reason := range st.Readiness.Reasons {
			m := unopenedReason.FindStringSubmatch(reason)
			if m != nil && m[1] == n.Name && m[2] == m[3] && m[4] == n.Name {
				streams = append(streams, m[2])
			}
		}
		slices.Sort(streams)
		return streams
	}
	return nil
}
