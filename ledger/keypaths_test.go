package ledger

import (
	"bytes"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// TestKeyPaths checks that the key paths follow the queues, and that a set never changes.
func TestKeyPaths(t *testing.T) {
	l, stamp := ledgerWithAuthority(t)
	apply := func(c Command) {
		t.Helper()
		stamp.Index++
		if r := l.Apply(stamp, []Command{c}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	apply(&AddQueue{ID: job.ID{1}, Name: "post", Config: job.QueueConfig{KeyPath: "params.a"}})
	first := l.KeyPaths()
	if got := first.Of("post"); got != (KeyPath{Path: "params.a"}) {
		t.Errorf("added: %+v", got)
	}
	apply(&ChangeQueue{Name: "post", Change: job.QueueChange{KeyPath: new("params.b"), KeyOptional: new(true)}})
	if got := l.KeyPaths().Of("post"); got != (KeyPath{"params.b", true}) || first.Of("post").Path != "params.a" || l.KeyPaths().Of("mail") != (KeyPath{}) {
		t.Errorf("changed: %+v; before %+v", got, first.Of("post"))
	}
	var text bytes.Buffer
	if err := l.Encode(&text); err != nil {
		t.Fatal(err)
	}
	restored, err := Decode(&text)
	if err != nil {
		t.Fatal(err)
	}
	if got := restored.KeyPaths().Of("post"); got != (KeyPath{"params.b", true}) {
		t.Errorf("restored: %+v", got)
	}
	apply(&ChangeQueue{Name: "post", Change: job.QueueChange{KeyPath: new("")}})
	if l.KeyPaths() != nil {
		t.Error("there is a key path after the only one was removed")
	}
	apply(&ChangeQueue{Name: "post", Change: job.QueueChange{KeyPath: new("params.c")}})
	apply(&RemoveQueue{Name: "post"})
	if l.KeyPaths() != nil {
		t.Error("there is a key path after its queue was removed")
	}
}
