package drill

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/internal/zoneinfo"
)

// TestDrill_ZonesDiffer runs two members with this build and one with another database of time zones.
// Each must name those that differ from it, and stay ready, until all have the same build.
func TestDrill_ZonesDiffer(t *testing.T) {
	soakTime(t)
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	release, hash, _ := strings.Cut(zoneinfo.Version(), "-")
	other := buildWith(t, "internal/zoneinfo/release.txt", map[string]string{release: "1999z"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cl, err := procs.LayOut(procs.Options{Nodes: 3, Dir: t.TempDir(), Binary: program})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Stop()
	n3 := cl.Nodes[2]
	n3.Args[0] = other
	if err := cl.Start(ctx); err != nil {
		t.Fatal(err)
	}
	versions := []string{zoneinfo.Version(), zoneinfo.Version(), "1999z-" + hash}
	require := func(what string) {
		t.Helper()
		for i, n := range cl.Nodes {
			err := until(ctx, fmt.Sprintf("%s: the warnings of %s", what, n.Name), func() error {
				s, err := n.Status(ctx)
				if err != nil {
					return err
				}
				var want, got []string
				for k, m := range cl.Nodes {
					if versions[k] != versions[i] {
						want = append(want, fmt.Sprintf("member %s has the time zones %s and this node %s", m.Name, versions[k], versions[i]))
					}
				}
				for _, warning := range s.Readiness.Warnings {
					if text, _, _ := strings.Cut(warning, ":"); strings.Contains(text, "time zones") {
						got = append(got, text)
					}
				}
				if !slices.Equal(got, want) || !s.Readiness.Ready || s.TimeZones != versions[i] {
					return fmt.Errorf("ready %t, time zones %s, warnings %q, want %q", s.Readiness.Ready, s.TimeZones, s.Readiness.Warnings, want)
				}
				t.Logf("%s: %s warns: %q", what, n.Name, s.Readiness.Warnings)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	require("one of three differs")
	n3.Stop(10 * time.Second)
	n3.Args[0], versions[2] = program, versions[0]
	if err := n3.Start(); err != nil {
		t.Fatal(err)
	}
	require("all are the same")
}
