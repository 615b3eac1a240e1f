package ledger

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestParamPaths checks that the paths follow the queues, and that a set never changes.
func TestParamPaths(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	apply := func(c Command) {
		t.Helper()
		stamp.Index++
		if r := l.Apply(stamp, []Command{c}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	check := func(l *Ledger, want ParamPaths, indexed ...string) {
		t.Helper()
		paths := l.ParamPaths()
		if got := paths.Of("post"); !reflect.DeepEqual(got, want) || paths.Indexed() == nil || !slices.Equal(paths.Indexed(), indexed) {
			t.Errorf("paths are %+v and %q, want %+v and %q", got, paths.Indexed(), want, indexed)
		}
	}
	index := func(paths ...string) *job.Names { return &job.Names{Names: paths} }
	check(l, ParamPaths{})
	apply(&AddQueue{ID: job.ID{1}, Name: "post", Config: job.QueueConfig{KeyPath: "params.a"}})
	first := l.ParamPaths()
	check(l, ParamPaths{Key: "params.a"})
	apply(&ChangeQueue{Name: "post", Change: job.QueueChange{KeyPath: new("params.b"), KeyOptional: new(true), Index: index("params.y", "params.x", "params.y")}})
	apply(&AddQueue{ID: job.ID{2}, Name: "mail", Config: job.QueueConfig{Index: []string{"params.x", "params.z"}}})
	check(l, ParamPaths{"params.b", true, []string{"params.x", "params.y"}}, "params.x", "params.y", "params.z")
	if first.Of("post").Key != "params.a" || len(first.Indexed()) > 0 {
		t.Errorf("an earlier set is now %+v", first)
	}
	var text bytes.Buffer
	if err := l.Encode(&text); err != nil {
		t.Fatal(err)
	}
	restored, err := Decode(&text)
	if err != nil {
		t.Fatal(err)
	}
	check(restored, ParamPaths{"params.b", true, []string{"params.x", "params.y"}}, "params.x", "params.y", "params.z")
	apply(&RemoveQueue{Name: "mail"})
	apply(&ChangeQueue{Name: "post", Change: job.QueueChange{KeyPath: new("")}})
	check(l, ParamPaths{"", false, []string{"params.x", "params.y"}}, "params.x", "params.y")
	apply(&ChangeQueue{Name: "post", Change: job.QueueChange{Index: index()}})
	if check(l, ParamPaths{}); l.ParamPaths() != nil {
		t.Error("there are paths after the last one was removed")
	}
	for _, paths := range [][]string{{"customer"}, {"params."}, {"params.a..b"}, {"1", "2", "3", "4", "5", "6", "7", "8", "9"}} {
		stamp.Index++
		if r := l.Apply(stamp, []Command{&ChangeQueue{Name: "post", Change: job.QueueChange{Index: index(paths...)}}}); r[0].Err == nil {
			t.Errorf("paths %q are accepted", paths)
		}
	}
}
