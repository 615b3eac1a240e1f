package clustertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// exec sends one command of the runtime contract over NATS and returns the event.
func exec(m *clustertest.Member, command string) (string, error) {
	event, index, err := m.Client().RequestWithIndex(context.Background(), "yard.exec", []byte(command))
	if err == nil && index == 0 {
		err = errors.New("the answer has no index")
	}
	return string(event), err
}

// execHTTP is like exec, over HTTP.
func execHTTP(m *clustertest.Member, command string) (string, error) {
	url := "http://" + m.Node().Addresses().HTTP + "/v1/exec"
	r, err := http.Post(url, "application/json", strings.NewReader(command))
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	if r.StatusCode == http.StatusOK {
		if index, err := strconv.ParseUint(r.Header.Get("Yard-Index"), 10, 64); err != nil || index == 0 {
			return "", fmt.Errorf("the answer's index is %q", r.Header.Get("Yard-Index"))
		}
		return string(body), nil
	}
	var refused struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(body, &refused); err != nil || refused.Error.Code != strconv.Itoa(r.StatusCode) {
		return "", fmt.Errorf("status %d with %s: %w", r.StatusCode, body, err)
	}
	return "", &api.Error{Code: refused.Error.Code, Text: refused.Error.Message}
}

// execLine is like exec, with the command line, which prints no error codes.
func execLine(m *clustertest.Member, command string) (string, error) {
	var out, errs bytes.Buffer
	args := []string{"exec", command, "--server", m.Node().Addresses().NATS}
	code := cli.Run(context.Background(), args, cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}, cli.Program{Version: "v0"})
	output, isRefusal := strings.CutPrefix(errs.String(), "yardmaster: ")
	switch {
	case code == 0 && errs.Len() == 0:
		var line, again bytes.Buffer
		if err := json.Compact(&line, out.Bytes()); err != nil {
			return "", err
		}
		if err := json.Indent(&again, line.Bytes(), "", "  "); err != nil || again.String()+"\n" != out.String() {
			return "", fmt.Errorf("the event is not written with two spaces: %q", out.String())
		}
		return line.String(), nil
	case code == 1 && out.Len() == 0 && isRefusal && strings.Count(output, "\n") == 1:
		return "", &api.Error{Text: strings.TrimSuffix(output, "\n")}
	}
	return "", fmt.Errorf("exit code %d, %q and %q", code, out.String(), errs.String())
}

// execExchanges are the commands of the contract in a valid order, with the expected
// event, or the code and text of a refusal. ID is replaced by an id per transport, so
// that the texts are the same for all.
var execExchanges = []struct{ command, want string }{
	{`{"command":"QueueDispatch","request_id":"ID-1","target":"crane 7","metadata":{"b":[1,{"y":2.50}],"a":"<&> ü"}}`,
		`{"event":"DispatchQueued","request_id":"ID-1","target":"crane 7","metadata":{"b":[1,{"y":2.50}],"a":"<&> ü"}}`},
	{`{"a":0,"metadata":{ "a":"<&> \u00fc", "b":[1,{"y":2.50}]},"target":"crane 7","request_id":"ID-1","command":"QueueDispatch"}`,
		`{"event":"DispatchQueued","request_id":"ID-1","target":"crane 7","metadata":{"b":[1,{"y":2.50}],"a":"<&> ü"}}`},
	{`{"command":"QueueDispatch","request_id":"ID-1","target":"crane 8"}`, `409 dispatch error: duplicate request id with other content: ID-1`},
	{`{"command":"MarkDelivered","request_id":"ID-1"}`, `409 dispatch error: invalid transition for ID-1: pending -> delivered`},
	{`{"command":"MarkNotified","request_id":"ID-1","channel":"radio"}`, `{"event":"DispatchNotified","request_id":"ID-1","channel":"radio"}`},
	{`{"command":"MarkNotified","request_id":"ID-1","channel":"radio"}`, `409 dispatch error: invalid transition for ID-1: notified -> notified`},
	{`{"command":"MarkDelivered","request_id":"ID-1"}`, `{"event":"DispatchDelivered","request_id":"ID-1"}`},
	{`{"command":"MarkFailed","request_id":"ID-1","reason":"late"}`, `409 dispatch error: invalid transition for ID-1: delivered -> failed`},

	{`{"command":"QueueDispatch","request_id":"ID-2","target":"","metadata":null}`, `{"event":"DispatchQueued","request_id":"ID-2","target":""}`},
	{`{"command":"MarkNotified","request_id":"ID-2","channel":""}`, `{"event":"DispatchNotified","request_id":"ID-2","channel":""}`},
	{`{"command":"MarkFailed","request_id":"ID-2","reason":"said \"no\"\n"}`, `{"event":"DispatchFailed","request_id":"ID-2","reason":"said \"no\"\n"}`},

	{`{"command":"QueueDispatch","request_id":"ID-3","target":"crane 7"}`, `{"event":"DispatchQueued","request_id":"ID-3","target":"crane 7"}`},
	{`{"command":"MarkFailed","request_id":"ID-3","reason":"nobody came"}`, `{"event":"DispatchFailed","request_id":"ID-3","reason":"nobody came"}`},
	{`{"command":"MarkNotified","request_id":"ID-9","channel":"radio"}`, `409 dispatch error: dispatch record not found: ID-9`},

	{`{"command":"CaptureSnapshot"}`, `{"event":"SnapshotCaptured"}`},
	{`{"command":"RequestReplay","cursor":"not a place"}`, `{"event":"ReplayRequested","cursor":"not a place"}`},
	{`{"command":"RequestReplay"}`, `{"event":"ReplayRequested","cursor":null}`},
	{`{"command":"RequestReplay","cursor":null}`, `{"event":"ReplayRequested","cursor":null}`},

	{`{"command":"AcquireAuthority","owner":"somebody","lease_id":"x","leased_until":"2099-01-01T00:00:00Z"}`, `409 authority error: lease already held by OWNER`},
	{`{"command":"RenewAuthority","owner":"somebody","lease_id":"x","leased_until":"2099-01-01T00:00:00Z"}`, `409 authority error: owner mismatch: lease held by OWNER`},

	{`{"command":"Explode"}`, "400 invalid JSON: unknown variant `Explode`, expected one of AcquireAuthority, RenewAuthority, QueueDispatch, MarkNotified, MarkDelivered, MarkFailed, RequestReplay, CaptureSnapshot"},
	{`{"command":"MarkNotified","request_id":"ID-1"}`, "400 invalid JSON: missing field `channel`"},
	{`{"command":"MarkNotified","request_id":7,"channel":"x"}`, "400 invalid JSON: request_id must be a string"},
	{`{"command":"MarkDelivered","request_id":"ID-1","request_id":"ID-2"}`, "400 invalid JSON: duplicate field `request_id`"},
	{`{"command":`, "400 invalid JSON: unexpected end of JSON input"},
	{`{"command":"MarkNotified","request_id":"ID-1","channel":"LONG"}`, `400 dispatch error: channel has 129 bytes; at most 128`},
	{`{"command":"QueueDispatch","request_id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10#1","target":"x"}`,
		"409 dispatch error: 0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10#1 names a job's dispatch, which only its executor marks; use `job cancel` or `job retry`"},
}

// contract checks that every transport of every node answers identically.
func contract(t *testing.T, cl *clustertest.Cluster) {
	for i, transport := range []struct {
		name string
		exec func(*clustertest.Member, string) (string, error)
	}{{"NATS", exec}, {"HTTP", execHTTP}, {"command line", execLine}} {
		for round := 0; ; round++ {
			was := cl.WaitAuthority()
			epoch := was.Node().Ledger().Authority().Epoch
			wrong := execAll(cl, was.Name, fmt.Sprintf("transport %d.%d", i, round), transport.exec)
			if was.Node().Ledger().Authority().Epoch != epoch {
				continue // the authority changed meanwhile: some answers may be unknown
			}
			for _, w := range wrong {
				t.Errorf("%s: %s", transport.name, w)
			}
			break
		}
	}
	owner := cl.WaitAuthority().Name
	cl.Eventually("history has a snapshot", func() error {
		captured, complete := 0, 0
		err := cl.Members[1].Client().History(shortContext(t), time.Time{}, false, func(b streams.Batch) error {
			captured += bytes.Count(b.Body, []byte(`{"event":"SnapshotCaptured",`))
			complete += bytes.Count(b.Body, []byte(`,"snapshot":{"schema_version":1,"authority":{"owner":"n`))
			return nil
		})
		if err == nil && (captured == 0 || complete != captured) {
			err = fmt.Errorf("history has %d events with %d snapshots", captured, complete)
		}
		return err
	})
	// MarkNotified and the like are refused for a dispatch of a job, with a hint.
	id := cl.Members[0].Enqueue(t, "marked", `{"params":{}}`)
	cl.Members[0].WaitState(t, id.String(), "waiting")
	_, err := exec(cl.Members[1], fmt.Sprintf(`{"command":"MarkFailed","request_id":"%s#1","reason":"x"}`, id))
	wantCode(t, err, "409")
	if err != nil && !strings.Contains(err.Error(), "job cancel") {
		t.Errorf("%v does not name the alternative", err)
	}
	if err := cl.Members[0].API("job.remove", map[string]any{"id": id}, nil); err != nil {
		t.Error(err)
	}
	for _, m := range cl.Members {
		data, index, err := m.Client().RequestWithIndex(shortContext(t), "yard.snapshot", nil)
		var s ledger.Snapshot
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err != nil || index == 0 {
			t.Errorf("the snapshot of %s at index %d: %v", m.Name, index, err)
		}
		if s.SchemaVersion != 1 || s.Authority.Owner == nil || *s.Authority.Owner != owner || s.Authority.Stale || s.Backlog.Delivered < 3 {
			t.Errorf("%s: %+v", m.Name, s)
		}
	}
}

// execAll runs the commands at all members in turn, and returns the deviations.
func execAll(cl *clustertest.Cluster, owner, id string, exec func(*clustertest.Member, string) (string, error)) (wrong []string) {
	fill := strings.NewReplacer("ID", id, "OWNER", owner, "LONG", strings.Repeat("x", 129))
	for n, c := range execExchanges {
		command, want := fill.Replace(c.command), fill.Replace(c.want)
		got, err := exec(cl.Members[n%3], command)
		var refused *api.Error
		if errors.As(err, &refused) {
			if got = refused.Code + " " + refused.Text; refused.Code == "" { // the command line prints no code
				_, want, _ = strings.Cut(want, " ")
				got = refused.Text
			}
			err = nil
		}
		if err != nil || got != want {
			wrong = append(wrong, fmt.Sprintf("%s\n got %s, %v\nwant %s", command, got, err, want))
		}
	}
	return wrong
}

// acquire returns the command that requests the authority for owner.
func acquire(owner string) string {
	return fmt.Sprintf(`{"command":"AcquireAuthority","owner":%q,"lease_id":"mine","leased_until":"2099-01-01T00:00:00Z"}`, owner)
}

// authorityTransfer checks that a member that requests the authority gets it, that its
// owner may request and renew it under a lease id of its own, and that history has the
// answer.
func authorityTransfer(t *testing.T, cl *clustertest.Cluster) {
	was := cl.WaitAuthority()
	lease := was.Node().Ledger().Authority()
	for _, m := range cl.Members {
		for command, event := range map[string]string{"Acquire": "Acquired", "Renew": "Renewed"} {
			got, err := exec(m, strings.Replace(acquire(was.Name), "Acquire", command, 1))
			if want := fmt.Sprintf(`{"event":"Authority%s","owner":%q,"lease_id":"mine","leased_until":"`, event, was.Name); err != nil || !strings.HasPrefix(got, want) || strings.Contains(got, "2099") {
				t.Errorf("%s at %s by the current authority: %s, %v", command, m.Name, got, err)
			}
		}
	}
	if now := was.Node().Ledger().Authority(); now.Epoch != lease.Epoch {
		t.Errorf("a request of the current authority changed the lease: %+v, then %+v", lease, now)
	}
	to := cl.Members[0]
	if to == was {
		to = cl.Members[1]
	}
	got := transferTo(cl, to, func(command string) (string, error) { return execHTTP(cl.Members[2], command) })
	if now := cl.WaitAuthority(was); now != to {
		t.Errorf("the authority is %s, want %s", now.Name, to.Name)
	}
	cl.Eventually("history has the same event", func() error {
		told := 0
		err := cl.Members[2].Client().History(shortContext(t), time.Time{}, false, func(tale streams.Batch) error {
			told += bytes.Count(tale.Body, []byte(strings.TrimSuffix(got, "}")+`,"seq":`))
			return nil
		})
		if err == nil && told != 1 {
			err = fmt.Errorf("history has it %d times", told)
		}
		return err
	})
	// A new tenure can hand over before any node has reported to it.
	for _, m := range cl.Members {
		if m != to {
			transferTo(cl, m, func(command string) (string, error) { return exec(cl.Members[2], command) })
		}
	}
	cl.WaitReady()
}

// transferTo requests the authority for a member until it has it, and returns the
// answer. A busy member may take longer than one request waits.
func transferTo(cl *clustertest.Cluster, m *clustertest.Member, exec func(command string) (string, error)) (event string) {
	cl.Eventually("the authority is transferred to "+m.Name, func() (err error) {
		event, err = exec(acquire(m.Name))
		if err == nil && !strings.HasPrefix(event, `{"event":"AuthorityAcquired","owner":"`+m.Name+`"`) {
			err = errors.New("the answer is " + event)
		}
		return err
	})
	return event
}

// authorityStays checks that a stopped member does not get the authority, and its owner
// keeps it.
func authorityStays(t *testing.T, cl *clustertest.Cluster, down *clustertest.Member) {
	was := cl.WaitAuthority(down)
	epoch := was.Node().Ledger().Authority().Epoch
	for _, m := range cl.Running() {
		_, err := exec(m, acquire(down.Name))
		wantCode(t, err, "503")
		want := "authority error: lease already held by " + was.Name + "; member " + down.Name + " cannot take it over: it "
		if err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s answered %v", m.Name, err)
		}
	}
	if now := was.Node().Ledger().Authority(); now.Epoch != epoch || now.Owner != was.Name {
		t.Errorf("the authority has moved: %+v", now)
	}
}
