package clustertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// valueDoors are the ways in which params reach the cluster. Each returns the id of the job, or
// why the params are refused.
var valueDoors = map[string]func(t *testing.T, _ *clustertest.Cluster, m *clustertest.Member, params string) (id string, err error){
	"NATS": func(_ *testing.T, _ *clustertest.Cluster, m *clustertest.Member, params string) (string, error) {
		var reply api.EnqueueReply
		err := m.Request("yard.enqueue.values", `{"function":"f","params":`+params+`}`, &reply)
		return reply.ID.String(), err
	},
	"HTTP": func(t *testing.T, _ *clustertest.Cluster, m *clustertest.Member, params string) (string, error) {
		response, err := http.Post("http://"+m.Node().Addresses().HTTP+"/v1/queues/values/jobs", "application/json", strings.NewReader(`{"function":"f","params":`+params+`}`))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		var reply struct {
			ID    string
			Error api.ErrorBody
		}
		if err := json.NewDecoder(response.Body).Decode(&reply); err != nil {
			t.Fatal(err)
		}
		if reply.Error.Message != "" {
			return "", errors.New(reply.Error.Message)
		}
		return reply.ID, nil
	},
	"bulk": func(_ *testing.T, _ *clustertest.Cluster, m *clustertest.Member, params string) (string, error) {
		var reply api.BulkReply
		if err := m.API("job.bulk", `{"queue":"values","jobs":[{"function":"f","params":`+params+`}]}`, &reply); err != nil {
			return "", err
		}
		if refused := reply.Jobs[0].Error; refused != nil {
			return "", errors.New(refused.Message)
		}
		return reply.Jobs[0].ID.String(), nil
	},
	"cron": func(_ *testing.T, _ *clustertest.Cluster, m *clustertest.Member, params string) (string, error) {
		err := m.API("cron.add", `{"name":"c","schedule":"@yearly","queue":"values","replace":true,"job":{"function":"f","params":`+params+`}}`, nil)
		if err != nil {
			return "", err
		}
		var reply api.EnqueueReply
		err = m.API("cron.run", map[string]any{"name": "c"}, &reply)
		return reply.ID.String(), err
	},
	"command line": func(t *testing.T, _ *clustertest.Cluster, m *clustertest.Member, params string) (string, error) {
		stdout, stderr, code := runCommand(t, m, "enqueue", "values", "f", "--params", params)
		if code != 0 {
			return "", errors.New(stderr)
		}
		return strings.TrimSpace(stdout), nil
	},
	"Overhop": func(t *testing.T, _ *clustertest.Cluster, m *clustertest.Member, params string) (string, error) {
		payload, err := overhop.FromJSON([]byte(params))
		if err != nil {
			return "", err
		}
		client, err := overhop.Dial(shortContext(t), m.Node().Addresses().Overhop, overhop.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- client.Run(context.Background()) }()
		defer func() { client.Close(); <-ended }()
		jid, err := client.Enqueue(shortContext(t), overhop.Enqueue{Queue: "values", Function: "f", Payload: payload})
		_, id, _ := strings.Cut(jid, ":")
		return id, err
	},
	"plain publish": func(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, params string) (string, error) {
		_, js := connect(t, m)
		message := nats.NewMsg("yard.jobs.values")
		key := uuid.NewString()
		message.Header.Set("Nats-Msg-Id", key)
		message.Data = []byte(`{"function":"f","params":` + params + `}`)
		if _, err := js.PublishMsg(shortContext(t), message); err != nil {
			t.Fatal(err)
		}
		var rejected *job.Fault
		cl.Eventually("the published job is decided", func() error {
			var j api.Job
			if err := m.API("job.show", api.JobRequest{ID: key}, &j); err != nil {
				return err
			}
			rejected = (*job.Fault)(j.Error)
			return nil
		})
		if rejected != nil {
			return "", errors.New(rejected.Message)
		}
		return key, nil
	},
}

// TestValues enqueues the same params at each door. Numbers are kept as they are written, whatever their
// size, and what is nested too deep is refused, so that no job is accepted that a worker cannot
// read.
func TestValues(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 1)
	m := cl.Members[0]
	m.AddQueue(t, "values", 0)
	nested := func(depth int) string {
		return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
	}
	for _, tt := range []struct{ name, params, refusal string }{
		{"exponent", `{"n":1e400}`, ""},
		{"small exponent", `{"n":-2.50E-400}`, ""},
		{"beyond 64 bits", `{"n":[18446744073709551616,-9223372036854775809]}`, ""},
		{"negative zero", `{"n":[-0.0,0e0]}`, ""},
		{"digits", `{"n":0.1000000000000000055511151231257827}`, ""},
		{"a number in a text", `{"n":"1e400"}`, ""},
		{"120 deep", nested(120), ""},
		{"brackets in texts", `{"n":"` + strings.Repeat("[{", 200) + `"}`, ""},
		{"121 deep", nested(121), "params: arrays and objects are nested 121 deep; at most 120"},
		{"arrays", `{"n":` + strings.Repeat("[", 124) + strings.Repeat("]", 124) + `}`, "nested 125 deep"},
		{"infinity", `{"n":Infinity}`, "must be"},
		{"not a number", `{"n":NaN}`, "must be"},
	} {
		for door, enqueue := range valueDoors {
			id, err := enqueue(t, cl, m, tt.params)
			switch {
			case tt.refusal == "must be": // each door says in its own words that it is not JSON
				if err == nil {
					t.Errorf("%s: %s is accepted", door, tt.name)
				}
			case tt.refusal != "":
				if err == nil || !strings.Contains(err.Error(), tt.refusal) {
					t.Errorf("%s: %s: %v", door, tt.name, err)
				}
			case err != nil:
				t.Errorf("%s: %s: %v", door, tt.name, err)
			default:
				checkParams(t, m, fmt.Sprintf("%s: %s", door, tt.name), id, tt.params)
			}
		}
	}
}

// checkParams checks the params of a job.
func checkParams(t *testing.T, m *clustertest.Member, name, id, want string) {
	t.Helper()
	j := m.WaitState(t, id, "waiting")
	if !bytes.Equal(j.Params, []byte(want)) {
		t.Errorf("%s: the params are %s", name, job.CutText(string(j.Params), 100))
	}
}
