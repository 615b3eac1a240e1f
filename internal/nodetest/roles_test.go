package nodetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"

	"yardmaster/cluster"
	"yardmaster/edge"
	"yardmaster/internal/nodetest"
	"yardmaster/node"
)

// persons are the users of the yard below, each a letter of the tables: producer,
// producer of the queue mail, worker, observer, operator.
var persons = map[byte]string{'p': "shop", 'q': "mailer", 'w': "marker", 'o': "eye", 'a': "chief"}

// rolesYard has a user of each role, by every way to log in. The tests' own has
// no name.
func rolesYard(t *testing.T) (y *nodetest.Yard, dial func(who byte, m *nodetest.Member) *person) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte("pw-marker"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "eye")
	if err := os.WriteFile(file, []byte("pw-eye\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	y = nodetest.Start(t, 3, func(c *node.Config) {
		c.NATS.Anonymous = "operator"
		c.NATS.Users = []node.UserConfig{
			{Name: "shop", Role: "producer", Password: "pw-shop"},
			{Name: "mailer", Role: "producer", Password: "pw-mailer", Queues: []string{"mail"}},
			{Name: "marker", Role: "worker", Password: edge.Secret(hash)},
			{Name: "eye", Role: "observer", PasswordFile: file},
			{Name: "chief", Role: "operator", NKey: public},
		}
	})
	return y, func(who byte, m *nodetest.Member) *person {
		t.Helper()
		name, inbox := persons[who], persons[who]
		login := nats.UserInfo(name, "pw-"+name)
		if who == 'a' {
			login, inbox = nats.Nkey(public, pair.Sign), public
		}
		nc, err := nats.Connect(m.Node().Addresses().NATS, login, nats.CustomInboxPrefix(cluster.InboxOf(inbox)), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(nc.Close)
		return &person{t, nc, name}
	}
}

// person is a user's connection.
type person struct {
	t    *testing.T
	nc   *nats.Conn
	name string
}

// refused tells whether the server forbade what has just been sent: its word
// comes before the answer to a flush.
func (p *person) refused(what, subject string) bool {
	p.t.Helper()
	if err := p.nc.FlushTimeout(10 * time.Second); err != nil {
		p.t.Fatal(err)
	}
	err := p.nc.LastError()
	return err != nil && strings.Contains(err.Error(), what+` to "`+subject+`"`)
}

func (p *person) publishes(subject, reply string, body []byte) (allowed bool) {
	p.t.Helper()
	if err := p.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: body}); err != nil {
		p.t.Fatal(err)
	}
	return !p.refused("Publish", subject)
}

func (p *person) listens(subject string) (allowed bool) {
	p.t.Helper()
	sub, err := p.nc.SubscribeSync(subject)
	if err != nil {
		p.t.Fatal(err)
	}
	allowed = !p.refused("Subscription", subject)
	if err := sub.Unsubscribe(); err != nil && allowed {
		p.t.Fatal(err)
	}
	return allowed
}

func (p *person) ask(subject, body string) (string, error) {
	m, err := p.nc.Request(subject, []byte(body), 5*time.Second)
	if err != nil {
		return "", err
	}
	if text := m.Header.Get("Nats-Service-Error"); text != "" {
		return "", fmt.Errorf("%s: %s", subject, text)
	}
	return string(m.Data), nil
}

// streams are all of the yard's, with how many messages each holds.
func streamsOf(t *testing.T, y *nodetest.Yard) map[string]uint64 {
	_, js := connect(t, y.Members[0])
	var last map[string]uint64
	y.Eventually("all streams are there", func() error {
		last = map[string]uint64{}
		for info := range js.ListStreams(soon(t)).Info() {
			last[info.Config.Name] = info.State.Msgs
		}
		if len(last) < 12 {
			return fmt.Errorf("streams %v", last)
		}
		return nil
	})
	return last
}

func TestRoles(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	y, dial := rolesYard(t)
	if err := y.Members[0].API("queue.add", map[string]any{"name": "mail"}, nil); err != nil {
		t.Fatal(err)
	}
	streamsOf(t, y) // all are there
	everybody := map[byte]*person{}
	for who := range persons {
		everybody[who] = dial(who, y.Members[int(who)%3])
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, *nodetest.Yard, map[byte]*person)
	}{
		{"Login", logins}, {"Internal", internals}, {"Endpoints", endpoints}, {"Work", roleWork}, {"Read", roleReads},
		{"Replies", replies}, {"Consumers", consumers},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, p := range everybody {
				p.t = t
			}
			c.run(t, y, everybody)
		})
	}
}

// logins: who is nobody does not come in, and the nodes' own user only from
// within the process.
func logins(t *testing.T, y *nodetest.Yard, _ map[byte]*person) {
	for _, login := range [][2]string{{"shop", "wrong"}, {"nobody", "pw-shop"}, {"chief", ""}, {"internal", ""}, {"internal", "internal"}, {"anonymous", "x"}} {
		nc, err := nats.Connect(y.Members[0].Node().Addresses().NATS, nats.UserInfo(login[0], login[1]))
		if err == nil {
			nc.Close()
			t.Errorf("%s with %q comes in", login[0], login[1])
		}
	}
}

// internals: what no user may write or hear, whatever its role.
func internals(t *testing.T, y *nodetest.Yard, everybody map[byte]*person) {
	writes := []string{
		"yard.history", "yard.results", "yard.dlq.mail", "yard.logs.x", "yard.blob.2026112200.x.0", "yard.tail.0.mail",
		"yard.lane.0.n.mail", "yard.lane.0.p.mail", "yard.local.n2.enqueue.mail", "yard.local.n1.node.stepdown",
		"yard.local.n1.api.v1.queue.remove", "yard.local.n1.consumers.CREATE.YARD_EVENTS", "yard.consumers.CREATE.YARD_EVENTS",
		"yard.events.DispatchQueued.mail", "yard.advisory.x", "yard.unknown", "yard", "elsewhere", "$SYS.REQ.SERVER.PING", "$O.x.C.y",
		"$MQTT.x", "$NRG.x", "_INBOX.x", "_INBOX_shop.x", "_INBOX_eye.x", "$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE",
		"$JS.API.ACCOUNT.PURGE.YARD", "$JS.API.STREAM.CREATE.MINE", "$JS.API.CONSUMER.DURABLE.CREATE.YARD_EVENTS.d",
		"$JS.API.CONSUMER.PAUSE.YARD_EVENTS.d", "$JS.API.CONSUMER.LEADER.STEPDOWN.YARD_EVENTS.d", "$JS.API.STREAM.CREATE.KV_MINE",
	}
	for _, verb := range []string{"assign", "report", "beat", "recall", "notice", "do", "transfer", "follow", "index", "look", "running", "why", "hands"} {
		writes = append(writes, "yard.node.n1."+verb)
	}
	for _, bucket := range cluster.Boards {
		writes = append(writes, "$KV."+bucket+".mail")
	}
	for stream := range streamsOf(t, y) {
		for _, verb := range []string{"CREATE", "UPDATE", "DELETE", "PURGE", "RESTORE", "SNAPSHOT", "MSG.DELETE", "PEER.REMOVE", "LEADER.STEPDOWN"} {
			writes = append(writes, "$JS.API.STREAM."+verb+"."+stream)
		}
	}
	hears := []string{
		">", "*", "yard.>", "yard.*.>", "yard.jobs.*", "yard.enqueue.*", "yard.api.v1.>", "yard.local.>", "yard.node.>", "yard.lane.>",
		"yard.lane.0.p.*", "yard.tail.>", "yard.history", "_INBOX.>", "_INBOX_internal.>", "$JS.>", "$KV.>", "$SRV.>", "$SYS.>", "_R_.>",
	}
	before := streamsOf(t, y)
	for who, p := range everybody {
		for _, subject := range writes {
			if p.publishes(subject, p.nc.NewRespInbox(), []byte("{}")) {
				t.Errorf("%s may write %s", p.name, subject)
			}
		}
		for _, subject := range hears {
			if p.listens(subject) {
				t.Errorf("%s may hear %s", p.name, subject)
			}
		}
		for other, name := range persons {
			if other != who && p.listens("_INBOX_"+name+".>") {
				t.Errorf("%s may hear what %s is answered", p.name, name)
			}
		}
		if !p.listens(cluster.InboxOf(p.name) + ".>") {
			t.Errorf("%s may not hear its own answers", p.name)
		}
		if live := p.listens("yard.events.>"); live != (who != 'p' && who != 'q') {
			t.Errorf("%s may hear events: %v", p.name, live)
		}
	}
	for _, stream := range []string{"YARD_DLQ", "YARD_JOBS_0", "YARD_JOBS_1", "YARD_JOBS_2", "YARD_BLOBS", "YARD_LOGS"} {
		if after := streamsOf(t, y); after[stream] != before[stream] {
			t.Errorf("%s held %d messages, now %d", stream, before[stream], after[stream])
		}
	}
}

// mayAsk is, for each question that a node answers, who may ask it. A new one is
// the operator's alone until it has a line here.
var mayAsk = map[string]string{
	"enqueue": "pa", "call": "pa", "exec-command": "", // by queue or command, see below
	"snapshot": "woa", "status": "woa", "openapi": "pwoa", "job-bulk": "pa",
	"job-show": "pwoa", "job-wait": "pwoa", "job-explain": "oa", "job-logs": "oa", "job-list": "oa",
	"cron-list": "oa", "cron-show": "oa", "ledger-hash": "oa", "queue-list": "oa", "queue-show": "oa", "queue-explain": "oa",
	"dlq-list": "oa", "dlq-show": "oa", "dlq-stats": "oa", "cluster-members": "oa", "cluster-scrub": "oa",
	"health": "woa", "readiness": "woa",
}

// endpoints: each role is tried at everything that a node answers, as the node
// itself lists it.
func endpoints(t *testing.T, y *nodetest.Yard, everybody map[byte]*person) {
	all := map[string]string{"yard.exec.QueueDispatch": "wa", "yard.exec.MarkNotified": "wa", "yard.exec.MarkDelivered": "wa",
		"yard.exec.MarkFailed": "wa", "yard.exec.AcquireAuthority": "a", "yard.exec.RenewAuthority": "a", "yard.exec.RequestReplay": "a",
		"yard.exec.CaptureSnapshot": "a", "yard.jobs.mail": "pqa", "yard.jobs.other": "pa", "yard.enqueue.mail": "pqa", "yard.call.mail": "pqa"}
	for _, service := range []string{"yard-api", "yard-node"} {
		said := askEach(t, y.Members[0], "$SRV.INFO."+service+".n1", 1, func(i *micro.Info) string { return i.ID })
		for _, e := range said["n1"].Endpoints {
			allowed, known := mayAsk[e.Name]
			if !known {
				allowed = "a"
			}
			if service == "yard-node" && (e.Name == "snapshot" || e.Name == "status") {
				allowed = "oa"
			}
			if e.Name != "exec-command" {
				all[strings.ReplaceAll(e.Subject, "*", "other")] = allowed
			}
		}
	}
	if len(all) < 50 {
		t.Fatalf("only %v", all)
	}
	for subject, allowed := range all {
		for who, p := range everybody {
			// Without a place for an answer nothing is carried out but an enqueue.
			if may := p.publishes(subject, "", []byte("no job")); may != strings.ContainsRune(allowed, rune(who)) {
				t.Errorf("%s may ask %s: %v", p.name, subject, may)
			}
		}
	}
}

// roleWork: what each role is for.
func roleWork(t *testing.T, y *nodetest.Yard, everybody map[byte]*person) {
	must := func(who byte, subject, body string) (answer string) {
		t.Helper()
		y.Eventually(persons[who]+" is answered on "+subject, func() (err error) {
			answer, err = everybody[who].ask(subject, body)
			return err
		})
		return answer
	}
	var accepted struct{ ID, Queue string }
	if err := json.Unmarshal([]byte(must('q', "yard.enqueue.mail", `{"function":"f","id":"k1"}`)), &accepted); err != nil || accepted.Queue != "mail" {
		t.Errorf("%+v, %v", accepted, err)
	}
	if ack := must('q', "yard.jobs.mail", `{"function":"f"}`); !strings.Contains(ack, `"stream":"YARD_JOBS_`) {
		t.Errorf("a lane answers %s", ack)
	}
	must('p', "yard.enqueue.other", `{"function":"f"}`)
	must('p', "yard.jobs.other", `{"function":"f"}`)
	must('p', "yard.api.v1.job.bulk", `{"queue":"mail","jobs":[{"function":"g"}]}`)
	for _, who := range []byte("pwoa") {
		if shown := must(who, "yard.api.v1.job.show", `{"id":"`+accepted.ID+`"}`); !strings.Contains(shown, `"queue":"mail"`) {
			t.Errorf("%s is shown %s", persons[who], shown)
		}
	}
	must('w', "yard.exec.QueueDispatch", `{"command":"QueueDispatch","request_id":"r1","target":"ann"}`)
	must('w', "yard.exec.MarkNotified", `{"command":"MarkNotified","request_id":"r1","channel":"phone"}`)
	must('w', "yard.exec.MarkDelivered", `{"command":"MarkDelivered","request_id":"r1"}`)
	must('a', "yard.exec", `{"command":"CaptureSnapshot"}`)
	must('w', "yard.snapshot", "")
	must('a', "yard.api.v1.queue.pause", `{"name":"mail"}`)
	must('a', "yard.api.v1.queue.resume", `{"name":"mail"}`)
	must('o', "yard.node.n3.status", "")
	// A command cannot go under another one's name.
	if said, err := everybody['w'].ask("yard.exec.MarkFailed", `{"command":"AcquireAuthority","owner":"n2","lease_id":"x","leased_until":"x"}`); err == nil || !strings.Contains(err.Error(), "the subject names") {
		t.Errorf("a command under another one's name: %s, %v", said, err)
	}
}

// roleReads: the observer sees what NATS' own tools show.
func roleReads(t *testing.T, y *nodetest.Yard, everybody map[byte]*person) {
	for _, who := range []byte("oa") {
		p := everybody[who]
		js, err := jetstream.New(p.nc)
		if err != nil {
			t.Fatal(err)
		}
		names := 0
		for range js.StreamNames(soon(t)).Name() {
			names++
		}
		if names < 10 {
			t.Errorf("%s sees %d streams", p.name, names)
		}
		events, err := js.OrderedConsumer(soon(t), "YARD_EVENTS", jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatalf("%s reads history: %v", p.name, err)
		}
		if m, err := events.Next(jetstream.FetchMaxWait(20 * time.Second)); err != nil || len(m.Data()) == 0 {
			t.Errorf("%s reads history: %v", p.name, err)
		}
		nodes, err := js.KeyValue(soon(t), "YARD_NODES")
		if err != nil {
			t.Fatal(err)
		}
		watch, err := nodes.WatchAll(soon(t))
		if err != nil {
			t.Fatalf("%s watches a board: %v", p.name, err)
		}
		seen := map[string]bool{}
		for len(seen) < 3 && !t.Failed() {
			select {
			case row := <-watch.Updates():
				if row != nil { // nil ends what stood there before
					seen[row.Key()] = true
				}
			case <-time.After(20 * time.Second):
				t.Errorf("%s sees only the nodes %v", p.name, seen)
			}
		}
		if err := watch.Stop(); err != nil {
			t.Errorf("%s watches no longer: %v", p.name, err)
		}
	}
	client, err := cluster.Dial(context.Background(), y.Members[1].Node().Addresses().NATS, cluster.DialOptions{User: "eye", Password: "pw-eye"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	told := 0
	if err := client.History(soon(t), time.Time{}, false, func(cluster.Tale) error { told++; return nil }); err != nil || told == 0 {
		t.Errorf("%d tales, %v", told, err)
	}
	live := make(chan *nats.Msg, 64)
	if _, err := everybody['o'].nc.ChanSubscribe("yard.events.>", live); err != nil {
		t.Fatal(err)
	}
	y.Eventually("the observer hears of a job", func() error {
		y.Members[2].Enqueue(t, "mail", `{"function":"f"}`)
		select {
		case <-live:
			return nil
		case <-time.After(time.Second):
			return context.DeadlineExceeded
		}
	})
}

// replies: an answer goes nowhere that its asker may not write. Nodes, lanes and
// JetStream write their answers themselves, and may write everywhere.
func replies(t *testing.T, y *nodetest.Yard, everybody map[byte]*person) {
	ways := map[byte][]string{
		'p': {"yard.jobs.mail", "yard.enqueue.mail", "yard.api.v1.job.show"}, 'q': {"yard.jobs.mail", "yard.enqueue.mail"},
		'w': {"yard.snapshot", "yard.status", "yard.node.n2.health"},
	}
	looking := []string{"yard.status", "yard.node.n2.health", "$SRV.PING", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.YARD_DLQ",
		"$JS.API.STREAM.MSG.GET.YARD_JOBS_0", "$JS.API.DIRECT.GET.YARD_JOBS_0", "$JS.API.DIRECT.GET.YARD_JOBS_1", "$JS.API.CONSUMER.CREATE.YARD_DLQ.x"}
	ways['o'], ways['a'] = looking, looking
	targets := []string{"yard.history", "yard.results", "yard.dlq.mail", "yard.lane.0.n.mail", "yard.logs.x", "$KV.YARD_QUEUES.forged",
		"yard.node.n1.stepdown", "yard.node.n2.transfer", "yard.enqueue.forged", "yard.jobs.forged", "$JS.API.STREAM.PURGE.YARD_DLQ",
		"$JS.API.STREAM.PURGE.YARD_JOBS_0", "$JS.API.STREAM.DELETE.YARD_LOGS"}
	// Something to lose: a dead letter.
	y.Members[0].Ask("yard.jobs.mail", "no job", nil)
	letter(t, y, "mail")
	authority := y.WaitAuthority()
	before := streamsOf(t, y)
	for who, subjects := range ways {
		p := everybody[who]
		for _, subject := range subjects {
			for _, target := range targets {
				if !p.publishes(subject, target, []byte(`{"seq":1,"id":"k1"}`)) {
					t.Errorf("%s may not ask %s", p.name, subject)
				}
			}
		}
	}
	// What one connection asks is carried out in order: one more of each question
	// is answered behind all of them.
	for who, subjects := range ways {
		for _, subject := range subjects {
			if _, err := everybody[who].nc.Request(subject, []byte(`{"seq":1,"id":"k1"}`), 10*time.Second); err != nil {
				t.Errorf("%s asks %s: %v", persons[who], subject, err)
			}
		}
	}
	_, js := connect(t, y.Members[0])
	for lane := range 3 {
		stream, err := js.Stream(soon(t), fmt.Sprintf("YARD_JOBS_%d", lane))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"p", "n"} {
			if m, err := stream.GetLastMsgForSubject(soon(t), fmt.Sprintf("yard.lane.%d.%s.forged", lane, kind)); err == nil {
				t.Errorf("an answer has become a job: %s", m.Data)
			}
		}
	}
	after := streamsOf(t, y)
	for _, stream := range []string{"YARD_LOGS", "YARD_BLOBS"} {
		if after[stream] != before[stream] {
			t.Errorf("%s held %d messages, now %d", stream, before[stream], after[stream])
		}
	}
	for _, stream := range []string{"YARD_DLQ", "YARD_JOBS_0", "YARD_JOBS_1", "YARD_JOBS_2", "YARD_EVENTS"} { // they grow
		if after[stream] < before[stream] {
			t.Errorf("%s held %d messages, now %d", stream, before[stream], after[stream])
		}
	}
	if y.WaitAuthority() != authority {
		t.Error("an answer has moved the authority")
	}
	for _, stream := range []string{"YARD_EVENTS", "YARD_RESULTS"} {
		s, err := js.Stream(soon(t), stream)
		if err != nil {
			t.Fatal(err)
		}
		for seq := s.CachedInfo().State.FirstSeq; seq <= s.CachedInfo().State.LastSeq; seq++ {
			if m, err := s.GetMsg(soon(t), seq); err == nil && m.Header.Get("Yard-First") == "" {
				t.Errorf("%s holds at %d what no node has written: %.100s", stream, seq, m.Data)
			}
		}
	}
}

// consumers: a user's consumer delivers to an inbox alone, and no user removes
// one that is not a user's.
func consumers(t *testing.T, y *nodetest.Yard, everybody map[byte]*person) {
	nc, _ := connect(t, y.Members[0])
	for _, subject := range []string{"yard.history", "yard.lane.0.n.mail", "yard.node.n1.assign", "$KV.YARD_QUEUES.mail", "$JS.API.STREAM.PURGE.YARD_DLQ", "elsewhere"} {
		said, err := everybody['o'].ask("$JS.API.CONSUMER.CREATE.YARD_DLQ.c", `{"stream_name":"YARD_DLQ","config":{"name":"c","deliver_subject":"`+subject+`"}}`)
		if err != nil || !strings.Contains(said, "delivers to an inbox") {
			t.Errorf("a consumer that delivers to %s: %s, %v", subject, said, err)
		}
	}
	said, err := everybody['o'].ask("$JS.API.CONSUMER.CREATE.YARD_DLQ.mine", `{"stream_name":"YARD_DLQ","config":{"name":"mine"}}`)
	if err != nil || strings.Contains(said, `"error"`) {
		t.Fatalf("%s, %v", said, err)
	}
	if said, err = everybody['o'].ask("$JS.API.CONSUMER.DELETE.YARD_DLQ.mine", ""); err != nil || !strings.Contains(said, `"success":true`) {
		t.Errorf("%s, %v", said, err)
	}
	if said, err = everybody['o'].ask("$JS.API.CONSUMER.DELETE.YARD_DLQ.none", ""); err != nil || !strings.Contains(said, `"error"`) {
		t.Errorf("%s, %v", said, err)
	}
	_ = nc
}
