package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// TestStandstill_Names: a copy that moves is not named, whatever it lacks, and
// neither is one that cannot be compared with its leader's for a while.
func TestStandstill_Names(t *testing.T) {
	s := &standstill{after: 20 * time.Second}
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		led, mine map[string]uint64
		stands    []string
	}{
		{map[string]uint64{"a": 100, "b": 100, "c": 10}, map[string]uint64{"a": 1, "b": 1, "c": 10}, nil},
		{map[string]uint64{"a": 200, "b": 200, "c": 20}, map[string]uint64{"a": 2, "b": 1, "c": 20}, nil},
		{map[string]uint64{"a": 300, "b": 300, "c": 30}, map[string]uint64{"a": 3, "b": 1, "c": 30}, []string{"b"}},
		{nil, nil, nil},
		{map[string]uint64{"a": 400, "b": 400, "d": 1}, map[string]uint64{"a": 4, "b": 1}, nil},
		{map[string]uint64{"a": 400, "b": 400, "d": 1}, map[string]uint64{"a": 4, "b": 400}, nil},
		{map[string]uint64{"a": 400, "b": 400, "d": 1}, map[string]uint64{"a": 4, "b": 400}, []string{"a", "d"}},
	} {
		s.note(step.led, step.mine, at)
		if got := s.standing(at); !slices.Equal(got, step.stands) {
			t.Errorf("%v of %v: %q stand still, want %q", step.mine, step.led, got, step.stands)
		}
		at = at.Add(10 * time.Second)
	}
}

// TestStandstill: the disk of one member takes nothing more for one stream, so
// that its copy stands still; the member names it, and the others do not.
func TestStandstill(t *testing.T) {
	nodes := yard(t)
	const name = "STANDS"
	stream, err := nodes[0].js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Replicas: 3, Subjects: []string{"stands"}})
	if err != nil {
		t.Fatal(err)
	}
	info := stream.CachedInfo()
	at := slices.IndexFunc(nodes, func(n *running) bool { return n.Cluster.cfg.Identity != info.Cluster.Leader })
	var watches []*standstill
	for _, n := range nodes {
		watches = append(watches, &standstill{c: n.Cluster, after: time.Second})
	}
	look := func() (named []string) {
		for i, w := range watches {
			w.look(t.Context())
			if got := w.standing(time.Now()); i == at {
				named = got
			} else if len(got) > 0 {
				t.Fatalf("%s says that %q stand still", nodes[i].cfg.Node, got)
			}
		}
		return named
	}
	if named := look(); len(named) > 0 {
		t.Fatalf("%q stand still before anything is wrong", named)
	}
	messages := filepath.Join(nodes[at].cfg.Dir, "jetstream", account, "streams", name, "msgs")
	if err := errors.Join(os.Rename(messages, messages+".gone"), os.WriteFile(messages, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	body := []byte(strings.Repeat("x", 900<<10))
	eventually(t, "the copy to be named", func() error {
		if _, err := nodes[0].js.Publish(t.Context(), "stands", body); err != nil {
			return err
		}
		if got := look(); !slices.Equal(got, []string{name}) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}
