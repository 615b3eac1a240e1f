package clustertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// wantsTo is a schema that wants a text named to.
const wantsTo = `{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}`

// setSchema sets the schema of a queue's function, and waits until all members have it. It
// returns the version.
func setSchema(t *testing.T, cl *clustertest.Cluster, queue, function, schema string, warn bool) (version uint64) {
	t.Helper()
	var set api.Schema
	request := api.SchemaChange{SchemaRequest: api.SchemaRequest{Queue: queue, Function: function}, Schema: json.RawMessage(schema), Warn: warn}
	cl.Eventually("the schema is set", func() error { return cl.Running()[0].API("schema.set", request, &set) })
	cl.Eventually("all members have the schema", func() error {
		for _, m := range cl.Running() {
			if s := m.Node().Ledger().Schemas().Get(queue, function); s == nil || s.Version < set.Version {
				return fmt.Errorf("%s does not have it", m.Name)
			}
		}
		return nil
	})
	return set.Version
}

// wantRefused checks that err is the refusal of a payload at path.
func wantRefused(t *testing.T, door string, err error, path string, version uint64) {
	t.Helper()
	refused, ok := errors.AsType[*api.Error](err)
	if !ok || refused.Code != api.CodeInvalid {
		t.Errorf("%s: %v", door, err)
		return
	}
	var data struct {
		Reason  string
		Path    *string
		Version uint64 `json:"schema_version"`
	}
	if err := json.Unmarshal(refused.Data, &data); err != nil || data.Reason != "payload_schema" || data.Path == nil || *data.Path != path || data.Version != version {
		t.Errorf("%s: %s, data %s", door, refused.Text, refused.Data)
	}
}

// TestSchemas refuses payloads at every door of a cluster, also after each member has been
// restarted and another has taken the authority, and in a cluster that a backup was restored
// into.
func TestSchemas(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 3, largeStore)
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "checked", 0)
	started := startedJobs(t, b, "checked")
	version := setSchema(t, cl, "checked", "send", wantsTo, false)

	t.Run("doors", func(t *testing.T) { everyDoor(t, cl, "checked", version) })
	right := a.Enqueue(t, "checked", `{"function":"send","params":{"to":"ann"}}`)
	b.WaitState(t, right.String(), "completed")

	// What is in the ledger survives the loss of the authority.
	authority := authorityOf(t, cl)
	authority.Isolate()
	others := cl.Running()
	for i, m := range others {
		if m == authority {
			others = append(others[:i:i], others[i+1:]...)
			break
		}
	}
	rejectedPlain(t, cl, others[0], "checked", "after-failover", version)
	cl.Heal()
	for _, m := range cl.Members {
		m.Restart()
	}
	rejectedPlain(t, cl, a, "checked", "after-restart", version)
	var list api.SchemaList
	if err := a.API("schema.list", api.SchemaListRequest{}, &list); err != nil || len(list.Schemas) != 1 || list.Schemas[0].Version != version {
		t.Fatal(list, err)
	}

	file := filepath.Join(t.TempDir(), "yard.tar")
	mustRunCommand(t, a, "backup", file)
	one := clustertest.Start(t, 1, largeStore)
	mustRunCommand(t, one.Members[0], "restore", file)
	one.Eventually("the restored cluster refuses", func() error {
		err := one.Members[0].Request("yard.enqueue.checked", `{"function":"send","params":{}}`, nil)
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Code == api.CodeInvalid {
			return nil
		}
		return fmt.Errorf("the answer is %w", err)
	})
	if shown := mustRunCommand(t, one.Members[0], "schema", "show", "checked", "send"); !strings.Contains(shown, `"required": [`) {
		t.Error(shown)
	}
	for _, params := range started() {
		if params != `{"to":"ann"}` {
			t.Errorf("a job with params %s has started", params)
		}
	}
}

// startedJobs runs a worker at a member, and returns a function that returns the params of the
// jobs that have started.
func startedJobs(t *testing.T, m *clustertest.Member, queue string) func() []string {
	params := make(chan string, 10_000)
	m.Worker(t, queue, 16, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		text, err := overhop.AppendJSON(nil, q.Payload)
		params <- string(text)
		return nil, err
	})
	return func() (all []string) {
		for {
			select {
			case text := <-params:
				all = append(all, text)
			default:
				return all
			}
		}
	}
}

func authorityOf(t *testing.T, cl *clustertest.Cluster) (owner *clustertest.Member) {
	t.Helper()
	cl.Eventually("an authority is known", func() error {
		s, err := cl.Running()[0].Status()
		if err != nil {
			return err
		}
		for _, m := range cl.Running() {
			if m.Name == s.Authority.Owner {
				owner = m
				return nil
			}
		}
		return errors.New("no authority")
	})
	return owner
}

// everyDoor offers a wrong payload at each door of each member.
func everyDoor(t *testing.T, cl *clustertest.Cluster, queue string, version uint64) {
	for _, m := range cl.Members {
		wantRefused(t, "enqueue", m.Request("yard.enqueue."+queue, `{"function":"send","params":{"to":1}}`, nil), "/to", version)
		wantRefused(t, "call", m.Request("yard.call."+queue, `{"function":"send"}`, nil), "", version)
		large := fmt.Sprintf(`{"function":"send","params":{"x":%q}}`, strings.Repeat("x", 200<<10))
		wantRefused(t, "a large job", m.Request("yard.enqueue."+queue, large, nil), "", version)
		wantRefused(t, "cron", m.API("cron.add", map[string]any{
			"name": "c", "schedule": "@hourly", "queue": queue, "job": map[string]any{"function": "send", "params": map[string]any{"to": nil}},
		}, nil), "/to", version)
		httpRefuses(t, m, queue)
		overhopRefuses(t, m, queue)
		bulkRefuses(t, m, queue)
		if _, stderr, code := runCommand(t, m, "enqueue", queue, "send", "--params", `{"to":[]}`); code != 1 || !strings.Contains(stderr, "params/to: must be a string (schema version ") {
			t.Errorf("command line: %d, %s", code, stderr)
		}
	}
	rejectedPlain(t, cl, cl.Members[1], queue, "plain", version)
	replayRefuses(t, cl, queue, version)
}

func httpRefuses(t *testing.T, m *clustertest.Member, queue string) {
	t.Helper()
	response, err := http.Post("http://"+m.Node().Addresses().HTTP+"/v1/queues/"+queue+"/jobs?wait=1s", "application/json", strings.NewReader(`{"function":"send","params":{"to":{}}}`))
	if err != nil {
		t.Error(err)
		return
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), `"path":"/to"`) {
		t.Errorf("HTTP: %d, %s, %v", response.StatusCode, body, err)
	}
}

func overhopRefuses(t *testing.T, m *clustertest.Member, queue string) {
	t.Helper()
	for name, payload := range map[string]any{"map": map[string]any{"to": 7}, "binary": map[string]any{"to": []byte("x")}, "text": "ann"} {
		raw, err := overhop.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.Overhop(t, overhop.Options{}).Enqueue(shortContext(t), overhop.Enqueue{Queue: queue, Function: "send", Payload: raw})
		refused, ok := errors.AsType[*overhop.RemoteError](err)
		if !ok || refused.Code != overhop.CodeInvalidJobPayload {
			t.Errorf("Overhop: %s: %v", name, err)
			continue
		}
		if path, ok := refused.Details.Get("path").Str(); !ok || name == "map" && path != "/to" || name != "map" && path != "" {
			t.Errorf("Overhop: %s: %v at %q", name, err, path)
		}
	}
}

func bulkRefuses(t *testing.T, m *clustertest.Member, queue string) {
	t.Helper()
	var reply api.BulkReply
	err := m.API("job.bulk", map[string]any{"queue": queue, "jobs": []map[string]any{
		{"function": "send", "params": map[string]any{"to": 1}}, {"function": "send", "params": map[string]any{"to": "ann"}},
	}}, &reply)
	if err != nil || reply.Refused != 1 || reply.Jobs[0].Error == nil || !strings.Contains(reply.Jobs[0].Error.Message, "params/to: must be a string") || reply.Jobs[1].Error != nil {
		t.Errorf("bulk: %+v, %v", reply, err)
	}
}

// rejectedPlain publishes a wrong job straight to the lanes, and checks its dead letter and how
// it is explained.
func rejectedPlain(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, queue, key string, version uint64) {
	t.Helper()
	_, js := connect(t, m)
	message := nats.NewMsg("yard.jobs." + queue)
	message.Header.Set("Nats-Msg-Id", key)
	message.Data = []byte(`{"function":"send","params":{"to":false}}`)
	cl.Eventually("a plain publish is acknowledged", func() error {
		_, err := js.PublishMsg(shortContext(t), message)
		return err
	})
	want := fmt.Sprintf("params/to: must be a string (schema version %d)", version)
	j := m.WaitState(t, key, "failed")
	if j.Error == nil || j.Error.Type != "rejected" || j.Error.Message != want {
		t.Errorf("%+v", j.Error)
	}
	var explained api.JobExplanation
	if err := m.API("job.explain", api.JobRequest{ID: key}, &explained); err != nil || !strings.Contains(fmt.Sprintf("%+v", explained), "rejected") || !strings.Contains(fmt.Sprintf("%+v", explained), want) {
		t.Errorf("%+v, %v", explained, err)
	}
	cl.Eventually("a dead letter names the place", func() error {
		var page api.DeadLetterPage
		if err := m.API("dlq.list", map[string]any{"queue": queue, "error": "params/to"}, &page); err != nil {
			return err
		}
		if text, _ := json.Marshal(page); !strings.Contains(string(text), j.ID.String()) {
			return fmt.Errorf("the dead letters are %s", text)
		}
		return nil
	})
}

// replayRefuses checks the doors of jobs that have ended.
func replayRefuses(t *testing.T, cl *clustertest.Cluster, queue string, version uint64) {
	m := cl.Members[2]
	id := m.Enqueue(t, queue, `{"function":"send","params":{"to":"ann"}}`)
	m.WaitState(t, id.String(), "completed")
	wantRefused(t, "replay", m.API("job.replay", map[string]any{"id": id, "params": map[string]any{"to": 2}}, nil), "/to", version)
	letters := waitDeadLetters(t, cl, m, 1, "--queue", queue)
	items, _ := runDLQ(t, m, "requeue", fmt.Sprint(letters[0].Letter))
	if len(items) != 1 || items[0].Result != "failed" || !strings.Contains(items[0].Error, "params/to: must be a string") {
		t.Errorf("requeue: %+v", items)
	}
}

// TestSchemas_Ticks checks that ticks whose job no longer matches become dead letters, and that
// a large body is read once it was checked against an earlier schema only.
func TestSchemas_Ticks(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 3, largeStore)
	m := cl.Members[0]
	m.AddQueue(t, "ticks", 0)
	started := startedJobs(t, cl.Members[1], "ticks")
	setSchema(t, cl, "ticks", "*", `{"required":["a"]}`, false)
	if err := m.API("cron.add", map[string]any{"name": "tick", "schedule": "@every 1s", "queue": "ticks", "job": map[string]any{"function": "f", "params": map[string]any{"a": 1}}}, nil); err != nil {
		t.Fatal(err)
	}
	cl.Eventually("a tick starts", func() error {
		if len(started()) == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	setSchema(t, cl, "ticks", "f", `{"required":["b"]}`, false)
	cl.Eventually("a tick is rejected", func() error { return m.CheckCount("ticks", "failed", 1) })
	if err := m.API("cron.remove", map[string]any{"name": "tick"}, nil); err != nil {
		t.Fatal(err)
	}
}

// TestSchemas_Warn checks that a schema which warns is counted by all members together.
func TestSchemas_Warn(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 3)
	version := setSchema(t, cl, "warned", "send", wantsTo, true)
	for i, m := range cl.Members {
		m.Enqueue(t, "warned", fmt.Sprintf(`{"id":"w%d","function":"send","params":{"to":1}}`, i))
		m.Enqueue(t, "warned", fmt.Sprintf(`{"id":"ok%d","function":"send","params":{"to":"ann"}}`, i))
	}
	cl.Eventually("three violations are counted", func() error {
		for _, m := range cl.Members {
			var shown api.Schema
			if err := m.API("schema.show", api.SchemaRequest{Queue: "warned", Function: "send"}, &shown); err != nil {
				return err
			}
			if shown.Warned != 3 || shown.Refused+shown.Rejected != 0 || shown.Last == nil || shown.Last.Path != "/to" || shown.Version != version || len(shown.Missing) > 0 {
				return fmt.Errorf("%s shows %+v", m.Name, shown)
			}
		}
		return nil
	})
	cl.Eventually("all jobs wait", func() error { return cl.Members[2].CheckCount("warned", "waiting", 6) })
	if q := cl.Members[2].Queue(t, "warned"); len(q.Schemas) != 1 || q.Schemas[0].Warned != 3 || !q.Schemas[0].Warn {
		t.Errorf("%+v", q)
	}
	if shown := mustRunCommand(t, cl.Members[1], "queue", "show", "warned"); !strings.Contains(shown, "warn") || !strings.Contains(shown, "params/to: must be a string") {
		t.Error(shown)
	}
	response, err := http.Get("http://" + authorityOf(t, cl).Node().Addresses().HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	metrics, err := io.ReadAll(response.Body)
	if want := `yard_schema_violations_total{function="send",queue="warned",result="warned"} 3`; err != nil || !strings.Contains(string(metrics), want) {
		t.Errorf("no %s, %v", want, err)
	}
}

// TestSchemas_CommandLine runs the verbs.
func TestSchemas_CommandLine(t *testing.T) {
	t.Parallel()
	m := clustertest.Start(t, 1).Members[0]
	file := filepath.Join(t.TempDir(), "schema.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(wantsTo)
	for _, function := range []string{"send", "*"} {
		mustRunCommand(t, m, "schema", "set", "mail", function, "--file", file)
	}
	mustRunCommand(t, m, "schema", "set", "mail", "--file", file, "--warn")
	if list := mustRunCommand(t, m, "schema", "list", "mail"); strings.Count(list, "\n") != 4 || !strings.Contains(list, "(none)") {
		t.Error(list)
	}
	var shown api.Schema
	if err := json.Unmarshal([]byte(mustRunCommand(t, m, "schema", "show", "mail", "send", "--json")), &shown); err != nil || shown.Version != 1 || shown.Bytes != len(wantsTo) {
		t.Errorf("%+v, %v", shown, err)
	}
	write(`{"properties":{"to":{"type":"txt"}}}`)
	for want, args := range map[string][]string{
		"schema at /properties/to/type: must be one of": {"schema", "set", "mail", "send", "--file", file},
		"--file is missing":                             {"schema", "set", "mail", "send"},
		"there is no such schema":                       {"schema", "rm", "mail", "other"},
		"no such file":                                  {"schema", "set", "mail", "--file", file + "x"},
		`has no verb "frob"`:                            {"schema", "frob"},
	} {
		if _, stderr, code := runCommand(t, m, args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d, %s", args, code, stderr)
		}
	}
	write(`{"$comment":"` + strings.Repeat("x", 33<<10) + `"}`)
	if _, stderr, code := runCommand(t, m, "schema", "set", "mail", "send", "--file", file); code == 0 || !strings.Contains(stderr, "at most 32768") {
		t.Error(code, stderr)
	}
	mustRunCommand(t, m, "schema", "rm", "mail", "send")
	if out := mustRunCommand(t, m, "schema"); !strings.Contains(out, "runtime-schema=") {
		t.Error(out)
	}
}
