package limitkeys

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestFinder_Find checks which key a job has in queues with and without a key path.
func TestFinder_Find(t *testing.T) {
	l := ledger.New()
	at := ledger.Stamp{Index: 1, Term: 1, At: time.Unix(1_780_000_000, 0), Epoch: 1}
	results := l.Apply(at, []ledger.Command{
		&ledger.Lead{Owner: "n1", Until: at.At.Add(time.Minute)},
		&ledger.AddQueue{ID: job.ID{1}, Name: "strict", Config: job.QueueConfig{KeyPath: "params.customer"}},
		&ledger.AddQueue{ID: job.ID{2}, Name: "lax", Config: job.QueueConfig{KeyPath: "params.customer", KeyOptional: true}},
	})
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	f := &Finder{ParamPaths: l.ParamPaths, ToJSON: func(payload []byte) ([]byte, error) {
		if !bytes.Equal(payload, []byte{0x81}) {
			return nil, errors.New("no JSON")
		}
		return []byte(`{"customer":"packed"}`), nil
	}}
	for _, c := range []struct {
		queue string
		spec  job.Spec
		want  string // the key, "-" if it is nil, or a part of the error after a '!'
	}{
		{"plain", job.Spec{Params: []byte(`{"customer":"acme"}`)}, "-"},
		{"strict", job.Spec{Params: []byte(`{"customer":"acme"}`)}, "acme"},
		{"strict", job.Spec{Params: []byte(`{"customer":"acme"}`), LimitKey: new("own")}, "own"},
		{"strict", job.Spec{LimitKey: new("")}, ""},
		{"strict", job.Spec{Payload: []byte{0x81}}, "packed"},
		{"strict", job.Spec{Payload: []byte{0xc0}}, "!params.customer, where there is no value"},
		{"strict", job.Spec{Function: "f"}, "!queue strict takes it from params.customer"},
		{"lax", job.Spec{Function: "f"}, ""},
		{"lax", job.Spec{Params: []byte(`{"customer":[]}`)}, "!at params.customer must be"},
	} {
		key, err := f.Find(c.queue, &c.spec)
		reason, refused := strings.CutPrefix(c.want, "!")
		switch {
		case refused:
			if _, invalid := errors.AsType[*job.InvalidError](err); !invalid || !strings.Contains(err.Error(), reason) {
				t.Errorf("%s %s: error %v, want %q", c.queue, c.spec.Params, err, reason)
			}
		case err != nil, (key == nil) != (c.want == "-"), key != nil && *key != c.want:
			t.Errorf("%s %s: %v, %v; want %q", c.queue, c.spec.Params, key, err, c.want)
		}
	}
	if key, err := (*Finder)(nil).Find("strict", &job.Spec{Function: "f"}); key != nil || err != nil {
		t.Errorf("without a finder: %v, %v", key, err)
	}
}

// TestFinder_Labels checks which params a job is found by.
func TestFinder_Labels(t *testing.T) {
	l := ledger.New()
	at := ledger.Stamp{Index: 1, Term: 1, At: time.Unix(1_780_000_000, 0), Epoch: 1}
	l.Apply(at, []ledger.Command{
		&ledger.Lead{Owner: "n1", Until: at.At.Add(time.Minute)},
		&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Index: []string{"params.customer", "params.order.id"}}},
	})
	f := &Finder{ParamPaths: l.ParamPaths, ToJSON: func([]byte) ([]byte, error) { return []byte(`{"order":{"id":7}}`), nil }}
	for _, c := range []struct {
		queue string
		spec  job.Spec
		want  []job.Label
	}{
		{"mail", job.Spec{Params: []byte(`{"customer":"acme","other":1}`)}, []job.Label{{Name: "customer", Value: "acme"}}},
		{"mail", job.Spec{Payload: []byte{0x81}}, []job.Label{{Name: "order.id", Value: "7"}}},
		{"mail", job.Spec{Blob: &job.Blob{}, Indexed: job.IndexedValues{"customer": "acme", "other": "x"}}, []job.Label{{Name: "customer", Value: "acme"}}},
		{"mail", job.Spec{Function: "f", Indexed: job.IndexedValues{"customer": "acme"}}, nil},
		{"bulk", job.Spec{Params: []byte(`{"customer":"acme"}`)}, nil},
	} {
		labels, err := job.ParseLabels(f.Labels(&job.Record{Queue: c.queue}, &c.spec, job.ID{1}))
		if err != nil || !slices.Equal(labels.Params, c.want) {
			t.Errorf("%s %s: %v, %v; want %v", c.queue, c.spec.Params, labels.Params, err, c.want)
		}
	}
}
