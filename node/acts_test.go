package node

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// act is an event of an act in the history.
type act struct{ Event, Action, Queue, Target, Actor, Door, Reason string }

// acts returns the first acts of users, at least want, in the order of the history, from which it
// removes the host and the port of an address.
func acts(t *testing.T, c *cluster.Client, want int) (found []act) {
	t.Helper()
	for len(found) < want {
		found = slices.DeleteFunc(allActs(t, c), func(a act) bool { return a.Action == startAction })
	}
	return found
}

// startAction is the act of a node that has started.
const startAction = "node.start"

// allActs is like acts, with those of nodes that have started, and does not wait for any.
func allActs(t *testing.T, c *cluster.Client) (found []act) {
	t.Helper()
	err := c.History(t.Context(), time.Time{}, false, func(b streams.Batch) error {
		for line := range bytes.Lines(b.Body) {
			var a act
			if err := json.Unmarshal(line, &a); err != nil {
				return err
			}
			if a.Event == ledger.OperatorActed.Label() {
				if _, _, err := net.SplitHostPort(a.Actor); err == nil {
					a.Actor = "address"
				}
				a.Event = ""
				found = append(found, a)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A node that has started leaves an event with its version.
func TestActs_NodeStart(t *testing.T) {
	n := startSingleNode(t, nil)
	c := dialAs(t, n, cluster.DialOptions{Name: t.Name()})
	want := act{Action: startAction, Target: n.cfg.Node.Name, Actor: "yard", Door: "ledger", Reason: "version " + n.version}
	for !slices.Contains(allActs(t, c), want) {
		time.Sleep(10 * time.Millisecond)
	}
}

// Acts over every interface leave an event with the user or else the address, and the
// reason.
func TestActs(t *testing.T) {
	n := startSingleNode(t, func(c *config.Config) {
		c.NATS.Users = []config.User{{Name: "ann", Role: "operator", Password: "pw"}}
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := dialAs(t, n, cluster.DialOptions{User: "ann", Password: "pw", Program: "cli", Reason: "provider down"})
	plain := dialAs(t, n, cluster.DialOptions{User: "ann", Password: "pw"})
	request := func(c *cluster.Client, endpoint, body string) {
		t.Helper()
		if _, err := c.Request(t.Context(), api.Subject(endpoint), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	request(plain, "queue-add", `{"name":"mail"}`)
	request(c, "queue-pause", `{"name":"mail"}`)
	send(t, n, "POST", "/v1/queues/mail/resume", "", "Yard-Reason: up again").decode(t, http.StatusOK, nil)
	s := n.workers.Session("w1")
	if err := s.PauseQueue(t.Context(), "mail", true); err != nil {
		t.Fatal(err)
	}
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send","id":"o1"}`).decode(t, http.StatusAccepted, nil)
	request(plain, "job-cancel", `{"id":"o1","queue":"mail","reason":"not needed"}`)
	request(plain, "job-replay", `{"id":"o1","queue":"mail","new_id":"o2"}`)
	request(plain, "cron-add", `{"name":"night","schedule":"@daily","queue":"mail","job":{"function":"send"}}`)
	request(plain, "cron-run", `{"name":"night","new_id":"o3"}`)
	if _, err := c.Request(t.Context(), api.NodeSubject("local", "drain"), nil); err == nil {
		t.Fatal("a node alone was drained")
	}
	replayed, _ := job.KeyID("mail", "o2")
	got := acts(t, plain, 8)
	for i, want := range []act{
		{"", "queue.add", "mail", "", "ann", "nats", ""},
		{"", "queue.pause", "mail", "", "ann", "cli", "provider down"},
		{"", "queue.resume", "mail", "", "address", "http", "up again"},
		{"", "queue.pause", "mail", "", n.cfg.Node.Name + "/w1", "overhop", ""},
		{"", "job.cancel", "mail", "", "ann", "nats", "not needed"},
		{"", "job.replay", "mail", replayed.String(), "ann", "nats", ""},
		{"", "cron.add", "mail", "night", "ann", "nats", ""},
		{"", "cron.run", "mail", "night", "ann", "nats", ""},
	} {
		if got[i] != want {
			t.Errorf("act %d is %+v, want %+v", i, got[i], want)
		}
	}
}

// Without users the actor is the address of the client, whatever headers it sends.
func TestActs_WithoutUsers(t *testing.T) {
	n := startSingleNode(t, nil)
	c := dialAs(t, n, cluster.DialOptions{})
	if _, err := c.Request(t.Context(), api.Subject("queue-add"), []byte(`{"name":"mail"}`)); err != nil {
		t.Fatal(err)
	}
	if got, want := acts(t, c, 1)[0], (act{"", "queue.add", "mail", "", "address", "nats", ""}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// dialAs connects to a node.
func dialAs(t *testing.T, n *Node, o cluster.DialOptions) *cluster.Client {
	t.Helper()
	c, err := cluster.Dial(t.Context(), n.Addresses().NATS, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
