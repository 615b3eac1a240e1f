package node

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// queueUsers are users of both NATS and HTTP, whose passwords and tokens are "t-" and their names.
var queueUsers = []config.User{
	{Name: "shop", Role: "producer"},
	{Name: "mailer", Role: "producer", Queues: []string{"mail", "post"}},
	{Name: "marker", Role: "worker"},
	{Name: "sorter", Role: "worker", Queues: []string{"mail"}},
	{Name: "ann", Role: "operator"},
	{Name: "chief", Role: "admin"},
}

// userYard is a node with queueUsers.
type userYard struct {
	t    *testing.T
	node *Node
	nats map[string]*nats.Conn
}

// startUserYard starts a node with queueUsers, changed by change unless that is nil, and connects
// all of them over NATS.
func startUserYard(t *testing.T, change func(*config.Config)) *userYard {
	n := startSingleNode(t, func(c *config.Config) {
		for _, u := range queueUsers {
			secret := edge.Secret("t-" + u.Name)
			c.HTTP.Users = append(c.HTTP.Users, config.HTTPUser{Name: u.Name, Role: u.Role, Queues: u.Queues, Token: secret})
			u.Password = secret
			c.NATS.Users = append(c.NATS.Users, u)
		}
		if change != nil {
			change(c)
		}
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	y := &userYard{t, n, map[string]*nats.Conn{}}
	for _, u := range queueUsers {
		nc, err := nats.Connect(n.Addresses().NATS, nats.UserInfo(u.Name, "t-"+u.Name), nats.CustomInboxPrefix(embedded.InboxPrefix(u.Name)),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		y.nats[u.Name] = nc
	}
	return y
}

// ask sends a request over NATS and returns the code of its error, "200" without one, and the reply.
func (y *userYard) ask(user, subject, body string) (code, reply string) {
	y.t.Helper()
	m, err := y.nats[user].Request(subject, []byte(body), 10*time.Second)
	if err != nil {
		y.t.Fatalf("request of %s to %s: %v", user, subject, err)
	}
	if code = m.Header.Get("Nats-Service-Error-Code"); code == "" {
		code = "200"
	}
	return code, string(m.Data)
}

// must is ask for the admin, whose request must succeed, and returns the id in the reply.
func (y *userYard) must(subject, body string) (id string) {
	y.t.Helper()
	code, reply := y.ask("chief", subject, body)
	var decoded struct{ ID string }
	if err := json.Unmarshal([]byte(reply), &decoded); code != "200" || err != nil {
		y.t.Fatalf("%s: %s %s", subject, code, reply)
	}
	return decoded.ID
}

// Users with queues read the jobs of these, over NATS and HTTP. Any other job is answered
// exactly as one that does not exist, whatever became of it. Users without queues read all.
func TestUserQueues_Read(t *testing.T) {
	y := startUserYard(t, nil)
	own := y.must("yard.enqueue.mail", `{"function":"f","id":"order-1","params":{"n":1}}`)
	waits := y.must("yard.enqueue.other", `{"function":"f","id":"order-2","params":{"n":2},"unique_key":"u"}`)
	cancelled := y.must("yard.enqueue.other", `{"function":"f","id":"order-3","params":{"n":3}}`)
	y.must("yard.api.v1.job.cancel", `{"id":"`+cancelled+`"}`)
	removed := y.must("yard.enqueue.other", `{"function":"f","id":"order-4","params":{"n":4}}`)
	y.must("yard.api.v1.job.remove", `{"id":"`+removed+`"}`)
	const duplicate = "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"
	y.must("yard.enqueue.other", `{"function":"f","id":"`+duplicate+`","unique_key":"u"}`)
	const unknown = "0190c3d2-5b1e-7cc0-98c4-dc0c0c073000"

	operations := []struct{ subject, path, own string }{
		{"job.show", "GET /v1/jobs/", "200"}, {"job.params", "GET /v1/jobs//params", "200"},
		{"job.result", "GET /v1/jobs//result", "409"}, {"job.wait", "GET /v1/jobs//wait?timeout_ms=50", "408"},
	}
	ask := func(user, subject, path, id string) [4]string {
		body := `{"id":"` + id + `"`
		if subject == "job.wait" {
			body += `,"timeout_ms":50`
		}
		code, reply := y.ask(user, "yard.api.v1."+subject, body+"}")
		method, path, _ := strings.Cut(path, " ")
		got := send(t, y.node, method, strings.Replace(path, "/jobs/", "/jobs/"+id, 1), "", "Authorization: Bearer t-"+user)
		without := func(text string) string { return strings.ReplaceAll(text, id, "ID") }
		return [4]string{code, without(reply), strings.Fields(got.String())[0], without(string(got.body))}
	}
	for _, op := range operations {
		for _, user := range []string{"shop", "mailer", "marker", "sorter", "ann"} {
			for _, name := range []string{own, "order-1", "mail:order-1"} {
				if got := ask(user, op.subject, op.path, name); got[0] != op.own || got[2] != op.own {
					t.Errorf("%s of %s, %s: %q", op.subject, user, name, got)
				}
			}
			nothing := ask(user, op.subject, op.path, unknown)
			if nothing[0] != "404" || nothing[2] != "404" {
				t.Errorf("%s of %s, an unknown job: %q", op.subject, user, nothing)
			}
			for state, id := range map[string]string{"waits": waits, "cancelled": cancelled, "removed": removed, "duplicate": duplicate} {
				got := ask(user, op.subject, op.path, id)
				restricted := user == "mailer" || user == "sorter"
				if (got == nothing) != restricted {
					t.Errorf("%s of %s, another queue's job that %s: %q, an unknown one: %q", op.subject, user, state, got, nothing)
				}
			}
			for _, name := range []string{"order-2", "other:order-2", "other:" + waits} {
				if got := ask(user, op.subject, op.path, name); (got[0] == "404" && got[2] == "404") != (user == "mailer" || user == "sorter") {
					t.Errorf("%s of %s, %s: %q", op.subject, user, name, got)
				}
			}
		}
	}
}

// Users with queues make jobs there only, at each door, and get no result of another queue's job
// by its unique key.
func TestUserQueues_Make(t *testing.T) {
	y := startUserYard(t, nil)
	y.must("yard.enqueue.other", `{"function":"f","unique_key":"u"}`)
	const many = `{"queue":"mail","jobs":[{"function":"f"},{"function":"f","queue":"other"},{"function":"f","queue":"post"}]}`
	for user, want := range map[string]string{"mailer": ",403,", "shop": ",,"} {
		_, overNATS := y.ask(user, "yard.api.v1.job.bulk", many)
		overHTTP := send(t, y.node, "POST", "/v1/jobs/bulk", many, "Authorization: Bearer t-"+user).body
		for _, reply := range []string{overNATS, string(overHTTP)} {
			var decoded struct {
				Jobs []struct{ Error struct{ Code string } }
			}
			if err := json.Unmarshal([]byte(reply), &decoded); err != nil || len(decoded.Jobs) != 3 {
				t.Fatalf("%s: %s, %v", user, reply, err)
			}
			if got := decoded.Jobs[0].Error.Code + "," + decoded.Jobs[1].Error.Code + "," + decoded.Jobs[2].Error.Code; got != want {
				t.Errorf("bulk of %s: %s", user, reply)
			}
		}
	}
	const call = `{"function":"f","unique_key":"u","wait_ms":50}`
	if code, reply := y.ask("mailer", "yard.call.mail", call); code != "403" {
		t.Errorf("a call with another queue's unique key: %s %s", code, reply)
	}
	if got := send(t, y.node, "POST", "/v1/queues/mail/call", call, "Authorization: Bearer t-mailer"); got.status != http.StatusForbidden {
		t.Errorf("a call with another queue's unique key: %s", got)
	}
	if code, reply := y.ask("shop", "yard.call.mail", call); code != "408" {
		t.Errorf("a call of a user without queues: %s %s", code, reply)
	}
	for subject, want := range map[string]bool{"yard.events.*.mail": true, "yard.events.JobCompleted.mail": true, "yard.events.>": false, "yard.events.*.other": false} {
		nc := y.nats["sorter"]
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		last := nc.LastError()
		if refused := last != nil && strings.Contains(last.Error(), `"`+subject+`"`); refused == want {
			t.Errorf("a worker with queues subscribes to %s: %v", subject, last)
		}
	}
}

// An id or a unique key that a job of another queue has does not tell a user with queues which queue
// that is, at any door. Users without queues are told.
func TestUserQueues_ForeignKeys(t *testing.T) {
	y := startUserYard(t, nil)
	const id = "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"
	y.must("yard.enqueue.secret-queue", `{"function":"f","id":"`+id+`","unique_key":"u"}`)
	for name, body := range map[string]string{
		"id": `{"function":"f","id":"` + id + `"}`, "id and guard": `{"function":"f","id":"` + id + `","rate_limit_key":"r","rate_limit_ms":1}`, "unique key": `{"function":"f","unique_key":"u"}`,
	} {
		bulk := `{"queue":"mail","jobs":[` + body + `]}`
		for _, user := range []string{"mailer", "shop"} {
			answers := map[string]string{}
			_, answers["enqueue"] = y.ask(user, "yard.enqueue.mail", body)
			_, answers["bulk"] = y.ask(user, "yard.api.v1.job.bulk", bulk)
			for path, body := range map[string]string{"/v1/queues/mail/jobs": body, "/v1/jobs/bulk": bulk, "/v1/queues/mail/jobs?wait=50ms": body, "/v1/queues/mail/call": strings.Replace(body, "{", `{"wait_ms":50,`, 1)} {
				answers[path] = string(send(t, y.node, "POST", path, body, "Authorization: Bearer t-"+user).body)
			}
			for at, answer := range answers {
				waited := name == "unique key" && (strings.Contains(at, "wait=") || strings.Contains(at, "call")) // the answer is that the job has not ended
				if told := strings.Contains(answer, "secret-queue"); told != (user == "shop" && !waited) {
					t.Errorf("%s, %s of %s: %s", name, at, user, answer)
				}
			}
		}
	}
}

// Users other than admins make so many queues within a minute, over NATS and HTTP together and
// whatever asks for them. Jobs in queues that exist are accepted as before, and so are those of
// other users.
func TestUserQueues_New(t *testing.T) {
	y := startUserYard(t, func(c *config.Config) { c.Scheduler.NewQueuesPerMinute = 3 })
	y.must("yard.api.v1.queue.add", `{"name":"there"}`)
	overHTTP := func(user, method, path, body string) string {
		got := send(t, y.node, method, path, body, "Authorization: Bearer t-"+user)
		return strings.Fields(got.String())[0] + " " + string(got.body)
	}
	overNATS := func(user, subject, body string) string {
		code, reply := y.ask(user, subject, body)
		return code + " " + reply
	}
	const body = `{"function":"f"}`
	for _, answer := range []string{
		overNATS("shop", "yard.enqueue.a", body), overHTTP("shop", "POST", "/v1/queues/b/jobs", body), overHTTP("shop", "POST", "/v1/queues/a/jobs", body),
		overNATS("shop", "yard.enqueue.there", body), overNATS("shop", "yard.enqueue.b", body),
	} {
		if !strings.Contains(answer, `"id"`) {
			t.Errorf("a job of shop: %s", answer)
		}
	}
	const many = `{"jobs":[{"queue":"c","function":"f"},{"queue":"d","function":"f"},{"queue":"there","function":"f"},{"queue":"e","function":"f"},{"queue":"a","function":"f"}]}`
	var bulk struct {
		Refused int
		Jobs    []struct {
			ID    string
			Error struct {
				Code, Message string
				RetryAfterMS  int `json:"retry_after_ms"`
			}
		}
	}
	_, reply := y.ask("shop", "yard.api.v1.job.bulk", many)
	if err := json.Unmarshal([]byte(reply), &bulk); err != nil || len(bulk.Jobs) != 5 || bulk.Refused != 2 {
		t.Fatalf("bulk: %s, %v", reply, err)
	}
	for i, row := range bulk.Jobs {
		switch refused := i == 1 || i == 3; {
		case refused != (row.Error.Code == "429") || refused != (row.ID == "") || refused != (row.Error.RetryAfterMS > 0):
			t.Errorf("row %d of %s", i, reply)
		case !refused: // it was acknowledged, so it is there
			if code, shown := y.ask("shop", "yard.api.v1.job.show", `{"id":"`+row.ID+`"}`); code != "200" {
				t.Errorf("row %d: %s %s", i, code, shown)
			}
		}
	}
	refusals := map[string]string{
		"enqueue": overNATS("shop", "yard.enqueue.d", body), "call": overNATS("shop", "yard.call.d", body),
		"HTTP enqueue": overHTTP("shop", "POST", "/v1/queues/d/jobs", body), "HTTP wait": overHTTP("shop", "POST", "/v1/queues/d/jobs?wait=50ms", body),
		"HTTP call": overHTTP("shop", "POST", "/v1/queues/d/call", body),
	}
	const cron = `{"name":"%","queue":"%","schedule":"@daily","job":{"function":"f"}}`
	for _, queue := range []string{"f", "g"} {
		if answer := overNATS("ann", "yard.api.v1.queue.add", `{"name":"`+queue+`"}`); !strings.HasPrefix(answer, "200") {
			t.Errorf("ann adds %s: %s", queue, answer)
		}
	}
	if answer := overNATS("ann", "yard.api.v1.cron.add", strings.ReplaceAll(cron, "%", "h")); !strings.HasPrefix(answer, "200") {
		t.Errorf("ann adds an entry of queue h: %s", answer)
	}
	refusals["queue.add"] = overNATS("ann", "yard.api.v1.queue.add", `{"name":"i"}`)
	refusals["HTTP queue.add"] = overHTTP("ann", "PUT", "/v1/queues/i", "")
	refusals["cron.add"] = overNATS("ann", "yard.api.v1.cron.add", strings.ReplaceAll(cron, "%", "i"))
	y.must("yard.api.v1.cron.add", strings.ReplaceAll(cron, "%", "j"))
	refusals["cron.run"] = overNATS("ann", "yard.api.v1.cron.run", `{"name":"j"}`)
	for door, answer := range refusals {
		if !strings.HasPrefix(answer, "429") || !strings.Contains(answer, `"reason":"new_queues"`) || !strings.Contains(answer, "scheduler.new_queues_per_minute") || !strings.Contains(answer, "retry_after_ms") {
			t.Errorf("%s: %s", door, answer)
		}
	}
	for _, queue := range []string{"k", "l", "m", "n", "o"} {
		y.must("yard.enqueue."+queue, body)
	}
	for _, queue := range []string{"d", "e", "i", "j"} {
		if answer := overNATS("ann", "yard.api.v1.queue.show", `{"name":"`+queue+`"}`); !strings.HasPrefix(answer, "404") {
			t.Errorf("queue %s: %s", queue, answer)
		}
	}
}
