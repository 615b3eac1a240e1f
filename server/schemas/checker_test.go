package schemas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/fakeledger"
)

const wantsTo = `{"properties":{"to":{"type":"string"}},"required":["to"]}`

// asJSON are maps in MessagePack that JSON can represent.
var asJSON = map[string]string{"\x81\xa2to\xa3ann": `{"to":"ann"}`, "\x81\xa2to\x01": `{"to":1}`}

// testCluster is a ledger with a checker, and the bodies that are stored apart.
type testCluster struct {
	*Checker
	ledger *fakeledger.Ledger
	bodies map[string]string // by the name of the blob
	err    error             // of a read of a body
	reads  int
	log    strings.Builder
}

func newTestCluster() *testCluster {
	c := &testCluster{ledger: fakeledger.New(), bodies: map[string]string{}}
	c.Checker = New(Config{
		Schemas: func() (s *ledger.Schemas) {
			c.ledger.View(func(l *ledger.Ledger) { s = l.Schemas() })
			return s
		},
		Msgpack: func(payload []byte) error {
			if payload[0] == 0xcb {
				return errors.New("float at byte 0")
			}
			return nil
		},
		ToJSON: func(msgpack []byte) ([]byte, error) {
			if text, ok := asJSON[string(msgpack)]; ok {
				return []byte(text), nil
			}
			return nil, errors.New("not JSON")
		},
		Secret: func() []byte { return []byte("secret") }, Log: slog.New(slog.NewTextHandler(&c.log, nil)),
		LoadBody: func(_ context.Context, record []byte) ([]byte, error) {
			c.reads++
			spec, err := job.ParseSpec(record)
			if err = errors.Join(err, c.err); err != nil {
				return nil, err
			}
			body, ok := c.bodies[spec.Blob.Name]
			if !ok {
				return nil, fmt.Errorf("body: %w", streams.ErrNotStored)
			}
			return []byte(body), nil
		},
	})
	return c
}

func (c *testCluster) set(function, schema string, warn bool) {
	c.ledger.Apply(&ledger.SetSchema{Queue: "mail", Function: function, Text: []byte(schema), Warn: warn})
}

func params(function, params string) *job.Spec {
	return &job.Spec{Function: function, Params: json.RawMessage(params)}
}

func TestChecker_Nil(t *testing.T) {
	var c *Checker
	if version, err := c.Check("mail", params("send", `{}`)); version != 0 || err != nil || c.Mark("mail", "send", 1, &job.Blob{}) != "" {
		t.Error(version, err)
	}
}

func TestChecker_Check(t *testing.T) {
	c := newTestCluster()
	if _, err := c.Check("mail", params("send", `{}`)); err != nil {
		t.Errorf("without schemas: %v", err)
	}
	c.set("send", wantsTo, false)
	c.set("", `{"maxProperties":0}`, false)
	c.set("warned", wantsTo, true)
	for name, tt := range map[string]struct {
		spec       *job.Spec
		path, text string
	}{
		"matches":                     {params("send", `{"to":"ann"}`), "", ""},
		"does not":                    {params("send", `{"to":1}`), "/to", "params/to: must be a string (schema version 1)"},
		"no params":                   {&job.Spec{Function: "send"}, "", `params: must have the property "to" (schema version 1)`},
		"no function":                 {params("", `{"a":1}`), "", "params: must have at most 0 properties (schema version 2)"},
		"another function":            {params("other", `{}`), "", ""},
		"only warns":                  {params("warned", `{}`), "", ""},
		"MessagePack map":             {&job.Spec{Function: "send", Payload: []byte("\x81\xa2to\xa3ann")}, "", ""},
		"MessagePack map, wrong":      {&job.Spec{Function: "send", Payload: []byte("\x81\xa2to\x01")}, "/to", "must be a string"},
		"MessagePack with binary":     {&job.Spec{Function: "send", Payload: []byte("\x81\xa2to\xc4\x01x")}, "", "without binary"},
		"MessagePack of another type": {&job.Spec{Function: "send", Payload: []byte("\xa3ann")}, "", "params: must be an object (schema version 1)"},
		"malformed MessagePack":       {&job.Spec{Function: "send", Payload: []byte{0x81, 0xc1}}, "", "must be an object that JSON can represent"},
		"large map":                   {&job.Spec{Function: "send", Payload: []byte{0xde, 0, 0}}, "", "must be an object that JSON can represent"},
	} {
		_, err := c.Check("mail", tt.spec)
		if tt.text == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		refused, ok := errors.AsType[*job.PayloadError](err)
		_, invalid := errors.AsType[*job.InvalidError](err)
		if !ok || !invalid || refused.Path != tt.path || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q at %q", name, err, tt.text, tt.path)
		}
	}
	for _, queue := range []string{"mail", "without"} { // whether the queue has a schema or not
		_, err := c.Check(queue, &job.Spec{Function: "send", Payload: []byte{0xcb}})
		verdict, _ := c.CheckRecord(t.Context(), &job.Record{Queue: queue}, &job.Spec{Function: "send", Payload: []byte{0xcb}}, false)
		const want = "payload_msgpack: float at byte 0"
		if _, invalid := errors.AsType[*job.InvalidError](err); !invalid || err.Error() != want || verdict.Rejection == nil || verdict.Rejection.Error() != want {
			t.Errorf("%s: a payload that no worker can be given: %v, %v", queue, err, verdict.Rejection)
		}
	}
	counts := c.Counts("mail")
	if counts[1].Refused != 7 || counts[2].Refused != 1 || counts[3].Warned != 0 || counts[2].Last.Reason != "must have at most 0 properties" {
		t.Errorf("%+v", counts)
	}
	if len(c.Counts("post")) != 0 {
		t.Error("counts of another queue")
	}
}

// TestChecker_Changes checks that each check uses the present schema, and that a schema keeps
// its counts when another one changes.
func TestChecker_Changes(t *testing.T) {
	c := newTestCluster()
	c.set("send", wantsTo, false)
	wrong := params("send", `{}`)
	if version, err := c.Check("mail", wrong); version != 1 || err == nil {
		t.Fatal(version, err)
	}
	c.set("*", `{}`, false)
	if version, err := c.Check("mail", wrong); version != 1 || err == nil || c.Counts("")[1].Refused != 2 {
		t.Error(version, err, c.Counts(""))
	}
	c.set("send", `{}`, false)
	if version, err := c.Check("mail", wrong); version != 3 || err != nil || c.Counts("")[3].Refused != 0 {
		t.Error(version, err, c.Counts(""))
	}
	c.ledger.Apply(&ledger.RemoveSchema{Queue: "mail", Function: "send"})
	if version, err := c.Check("mail", wrong); version != 2 || err != nil {
		t.Error(version, err)
	}
	c.ledger.Apply(&ledger.RemoveSchema{Queue: "mail", Function: "*"})
	if version, err := c.Check("mail", wrong); version != 0 || err != nil || len(c.Counts("")) != 0 {
		t.Error(version, err)
	}
}

// TestChecker_Unusable checks that a schema which this build cannot use, because a node of
// another build has accepted it, matches nothing.
func TestChecker_Unusable(t *testing.T) {
	c := newTestCluster()
	c.set("send", `{"type":"unknown"}`, false)
	if _, err := c.Check("mail", params("send", `{}`)); err == nil || !strings.Contains(err.Error(), "this build cannot use the schema: schema at /type") {
		t.Error(err)
	}
}

func TestChecker_CheckRecord(t *testing.T) {
	c := newTestCluster()
	record := &job.Record{Queue: "mail"}
	check := func(spec *job.Spec) error {
		t.Helper()
		verdict, err := c.CheckRecord(t.Context(), record, spec, false)
		if err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(c.Counts(""))
		if verdict.Ingested != nil {
			verdict.Ingested()
		}
		if counted := fmt.Sprint(c.Counts("")) != before; counted != (verdict.Ingested != nil) {
			t.Errorf("counted %t", counted)
		}
		return verdict.Rejection
	}
	wrong := params("send", `{"to":1}`)
	if err := check(wrong); err != nil {
		t.Errorf("without schemas: %v", err)
	}
	c.set("send", wantsTo, false)
	if err := check(wrong); err == nil || err.Error() != "params/to: must be a string (schema version 1)" || c.Counts("")[1].Rejected != 1 {
		t.Errorf("%v, %+v", err, c.Counts(""))
	}
	c.set("send", wantsTo, true)
	for range 3 {
		if err := check(wrong); err != nil {
			t.Errorf("a schema that warns: %v", err)
		}
	}
	counts := c.Counts("")[2]
	if counts.Warned != 3 || counts.Rejected != 0 || counts.Last.Path != "/to" || counts.Last.Reason != "must be a string" {
		t.Errorf("%+v", counts)
	}
	if lines := strings.Count(c.log.String(), "payload does not match its schema"); lines != 1 || !strings.Contains(c.log.String(), "path=/to") {
		t.Errorf("%d lines: %s", lines, c.log.String())
	}
}

// TestChecker_CheckRecordBlob checks that the body of a record is read unless a node has
// checked it against this version of the schema.
func TestChecker_CheckRecordBlob(t *testing.T) {
	c := newTestCluster()
	c.set("send", wantsTo, false)
	right, wrong := job.Blob{Name: "right", Chunks: 1, Size: 1, SHA256: strings.Repeat("0", 64)}, job.Blob{Name: "wrong", Chunks: 1, Size: 1, SHA256: strings.Repeat("1", 64)}
	c.bodies["right"], c.bodies["wrong"] = `{"function":"send","params":{"to":"ann"}}`, `{"function":"send","params":{"to":1}}`
	check := func(blob job.Blob, mayRead bool) (rejection, err error) {
		spec := job.Spec{Function: "send", Blob: &blob}
		body, _ := json.Marshal(spec)
		verdict, err := c.CheckRecord(t.Context(), &job.Record{Queue: "mail", Body: body}, &spec, mayRead)
		return verdict.Rejection, err
	}
	if _, err := check(right, false); err == nil {
		t.Error("it is accepted without being read")
	}
	if rejection, err := check(right, true); rejection != nil || err != nil {
		t.Error(rejection, err)
	}
	if rejection, err := check(wrong, true); rejection == nil || err != nil {
		t.Error(rejection, err)
	}
	gone := wrong
	gone.Name = "gone"
	if rejection, err := check(gone, true); rejection == nil || err != nil {
		t.Error("a body that is gone:", rejection, err)
	}
	c.err = errors.New("no leader")
	if rejection, err := check(right, true); rejection != nil || err == nil {
		t.Error("a body that cannot be read now:", rejection, err)
	}
	c.err = nil

	right.Checked = c.Mark("mail", "send", 1, &right)
	reads := c.reads
	if rejection, err := check(right, false); rejection != nil || err != nil || c.reads != reads {
		t.Error("a body that was checked:", rejection, err)
	}
	wrong.Checked = right.Checked // a client copies the mark
	if _, err := check(wrong, false); err == nil {
		t.Error("a mark of another body is valid")
	}
	for _, mark := range []string{"1.", "1", ".", "1." + strings.Repeat("0", 32), c.Mark("mail", "other", 1, &wrong), c.Mark("post", "send", 1, &wrong), c.Mark("mail", "send", 2, &wrong)} {
		wrong.Checked = mark
		if _, err := check(wrong, false); err == nil {
			t.Errorf("mark %q is valid", mark)
		}
	}
	c.set("send", `{"required":["to","cc"]}`, false)
	if rejection, err := check(right, true); rejection == nil || err != nil {
		t.Error("a body that was checked against an earlier version:", rejection, err)
	}
}

type fleet map[string]map[uint64]api.SchemaCounts

func (f fleet) RequestJSON(_ context.Context, node, _ string, request, reply any) error {
	counts, ok := f[node]
	if !ok {
		return errors.New("no answer")
	}
	text, _ := json.Marshal(counts)
	return json.Unmarshal(text, reply)
}

// TestPeers_Counts checks that the counts of all members are added up.
func TestPeers_Counts(t *testing.T) {
	c := newTestCluster()
	c.set("send", wantsTo, false)
	_, _ = c.Check("mail", params("send", `{}`))
	late := &api.SchemaViolation{At: c.Counts("")[1].Last.At.Add(1), Path: "/late"}
	p := &Peers{
		Checker: c.Checker, Node: "n1", Members: func() []string { return []string{"n3", "n1", "n2", "n4"} },
		Fleet: fleet{"n2": {1: {Refused: 2, Warned: 1, Last: late}, 9: {Rejected: 1}}, "n3": nil},
	}
	counts, missing := p.Counts(t.Context(), "mail")
	if got := counts[1]; got.Refused != 3 || got.Warned != 1 || got.Last.Path != "/late" || counts[9].Rejected != 1 || fmt.Sprint(missing) != "[n4]" {
		t.Errorf("%+v, missing %v", counts, missing)
	}
	text, err := p.Handlers()[verbCounts](t.Context(), []byte(`{"queue":"mail"}`))
	if err != nil || !strings.Contains(string(text), `"1":{"refused":1`) {
		t.Errorf("%s, %v", text, err)
	}
}

// BenchmarkChecker measures a check without schemas, of a queue without one where others have
// some, and of one with a schema.
func BenchmarkChecker(b *testing.B) {
	for name, queue := range map[string]string{"none": "", "other": "post", "schema": "mail"} {
		b.Run(name, func(b *testing.B) {
			c := newTestCluster()
			if queue != "" {
				c.set("send", wantsTo, false)
			}
			set := c.cfg.Schemas()
			c.cfg.Schemas = func() *ledger.Schemas { return set } // as [consensus.Replica.Schemas], without a lock
			spec := params("send", `{"to":"someone@example.org","n":1234567}`)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Check(queue, spec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
