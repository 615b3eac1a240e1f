package clustertest_test

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

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// userNames are the users of the cluster below, by their letters in the tables: producer,
// producer of the queue mail, worker, observer, operator.
var userNames = map[byte]string{'p': "shop", 'q': "mailer", 'w': "marker", 'o': "eye", 'a': "chief"}

// rolesCluster starts a cluster with a user of each role, covering all ways to log in. The
// tests' own user has no name.
func rolesCluster(t *testing.T) (cl *clustertest.Cluster, dial func(letter byte, m *clustertest.Member) *userConn) {
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
	cl = clustertest.Start(t, 3, func(c *config.Config) {
		c.NATS.Anonymous = "operator"
		c.NATS.Users = []config.User{
			{Name: "shop", Role: "producer", Password: "pw-shop"},
			{Name: "mailer", Role: "producer", Password: "pw-mailer", Queues: []string{"mail"}},
			{Name: "marker", Role: "worker", Password: edge.Secret(hash)},
			{Name: "eye", Role: "observer", PasswordFile: file},
			{Name: "chief", Role: "admin", NKey: public},
		}
	})
	return cl, func(letter byte, m *clustertest.Member) *userConn {
		t.Helper()
		name, inbox := userNames[letter], userNames[letter]
		login := nats.UserInfo(name, "pw-"+name)
		if letter == 'a' {
			login, inbox = nats.Nkey(public, pair.Sign), public
		}
		nc, err := nats.Connect(m.Node().Addresses().NATS, login, nats.CustomInboxPrefix(embedded.InboxPrefix(inbox)), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(nc.Close)
		return &userConn{t, nc, name}
	}
}

// userConn is the connection of a user.
type userConn struct {
	t    *testing.T
	nc   *nats.Conn
	name string
}

// refused reports whether the server has refused the last publish or subscription: its
// error arrives before the answer to a flush.
func (p *userConn) refused(what, subject string) bool {
	p.t.Helper()
	if err := p.nc.FlushTimeout(10 * time.Second); err != nil {
		p.t.Fatal(err)
	}
	err := p.nc.LastError()
	return err != nil && strings.Contains(err.Error(), what+` to "`+subject+`"`)
}

func (p *userConn) mayPublish(subject, reply string, body []byte) (allowed bool) {
	p.t.Helper()
	if err := p.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: body}); err != nil {
		p.t.Fatal(err)
	}
	return !p.refused("Publish", subject)
}

func (p *userConn) maySubscribe(subject string) (allowed bool) {
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

func (p *userConn) ask(subject, body string) (string, error) {
	m, err := p.nc.Request(subject, []byte(body), 5*time.Second)
	if err != nil {
		return "", err
	}
	if text := m.Header.Get("Nats-Service-Error"); text != "" {
		return "", fmt.Errorf("%s: %s", subject, text)
	}
	return string(m.Data), nil
}

// streamsOf returns the number of messages of each stream.
func streamsOf(t *testing.T, cl *clustertest.Cluster) map[string]uint64 {
	_, js := connect(t, cl.Members[0])
	var last map[string]uint64
	cl.Eventually("all streams are there", func() error {
		last = map[string]uint64{}
		for info := range js.ListStreams(shortContext(t)).Info() {
			last[info.Config.Name] = info.State.Msgs
		}
		if len(last) < len(cl.Members)+len(subjects.SharedStreams)+len(subjects.Boards) { // a slow server's are left out
			return fmt.Errorf("the streams are %v", last)
		}
		return nil
	})
	return last
}

func TestRoles(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	cl, dial := rolesCluster(t)
	if err := cl.Members[0].API("queue.add", map[string]any{"name": "mail"}, nil); err != nil {
		t.Fatal(err)
	}
	streamsOf(t, cl) // wait until all exist
	everybody := map[byte]*userConn{}
	for who := range userNames {
		everybody[who] = dial(who, cl.Members[int(who)%3])
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, *clustertest.Cluster, map[byte]*userConn)
	}{
		{"Login", logins}, {"Internal", internalSubjects}, {"Endpoints", endpoints}, {"Work", roleActions}, {"Read", roleReads},
		{"Replies", replies}, {"Inboxes", otherInboxes}, {"Consumers", consumers},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, p := range everybody {
				p.t = t
			}
			c.run(t, cl, everybody)
		})
	}
}

// logins checks that unknown users are refused, and that the nodes' own user can only log
// in from within the process.
func logins(t *testing.T, cl *clustertest.Cluster, _ map[byte]*userConn) {
	for _, login := range [][2]string{{"shop", "wrong"}, {"nobody", "pw-shop"}, {"chief", ""}, {"internal", ""}, {"internal", "internal"}, {"anonymous", "x"}} {
		nc, err := nats.Connect(cl.Members[0].Node().Addresses().NATS, nats.UserInfo(login[0], login[1]))
		if err == nil {
			nc.Close()
			t.Errorf("%s with %q was accepted", login[0], login[1])
		}
	}
}

// internalSubjects checks what no user may publish or receive, whatever its role.
func internalSubjects(t *testing.T, cl *clustertest.Cluster, conns map[byte]*userConn) {
	writes := []string{
		"yard.history", "yard.results", "yard.dlq.mail", "yard.logs.x", "yard.blob.2026112200.x.0", "yard.tail.0.mail",
		"yard.lane.0.n.mail", "yard.lane.0.p.mail", "yard.local.n2.enqueue.mail", "yard.local.n1.node.stepdown",
		"yard.local.n1.api.v1.queue.remove", "yard.local.n1.consumers.CREATE.YARD_EVENTS", "yard.consumers.CREATE.YARD_EVENTS",
		"yard.events.DispatchQueued.mail", "yard.advisory.x", "yard.unknown", "yard", "elsewhere", "$SYS.REQ.SERVER.PING", "$O.x.C.y",
		"$MQTT.x", "$NRG.x", "_INBOX.x", "_INBOX_shop.x", "_INBOX_eye.x", "$JS.API.META.LEADER.STEPDOWN", "$JS.API.SERVER.REMOVE",
		"$JS.API.ACCOUNT.PURGE.YARD", "yard.refused.STREAM.PURGE.YARD_DLQ",
	}
	refused := []string{ // answered, if the role reads streams
		"$JS.API.STREAM.CREATE.MINE", "$JS.API.CONSUMER.DURABLE.CREATE.YARD_EVENTS.d",
		"$JS.API.CONSUMER.PAUSE.YARD_EVENTS.d", "$JS.API.CONSUMER.LEADER.STEPDOWN.YARD_EVENTS.d", "$JS.API.STREAM.CREATE.KV_MINE",
	}
	for _, verb := range []string{"assign", "report", "beat", "recall", "notice", "propose", "transfer", "follower_status", "ledger_index",
		"authority_status", "running_job", "explain_placement", "executors", "node_status", "promote", "notify_removed", "ledger_hash", "diverged", "leader_moves"} {
		writes = append(writes, "yard.node.n1."+verb)
	}
	for _, bucket := range subjects.Boards {
		writes = append(writes, "$KV."+bucket+".mail")
	}
	for stream := range streamsOf(t, cl) {
		for _, verb := range []string{"CREATE", "UPDATE", "DELETE", "PURGE", "RESTORE", "SNAPSHOT", "MSG.DELETE", "PEER.REMOVE", "LEADER.STEPDOWN"} {
			refused = append(refused, "$JS.API.STREAM."+verb+"."+stream)
		}
	}
	hears := []string{
		">", "*", "yard.>", "yard.*.>", "yard.jobs.*", "yard.enqueue.*", "yard.api.v1.>", "yard.local.>", "yard.node.>", "yard.lane.>",
		"yard.lane.0.p.*", "yard.tail.>", "yard.refused.>", "yard.history", "_INBOX.>", "_INBOX_internal.>", "$JS.>", "$KV.>", "$SRV.>", "$SYS.>", "_R_.>",
	}
	before := streamsOf(t, cl)
	for who, p := range conns {
		for _, subject := range writes {
			if p.mayPublish(subject, p.nc.NewRespInbox(), []byte("{}")) {
				t.Errorf("%s may publish %s", p.name, subject)
			}
		}
		for _, subject := range refused {
			if who == 'o' || who == 'a' {
				refusedByNode(t, p, subject)
			} else if p.mayPublish(subject, p.nc.NewRespInbox(), []byte("{}")) {
				t.Errorf("%s may publish %s", p.name, subject)
			}
		}
		for _, subject := range hears {
			if p.maySubscribe(subject) {
				t.Errorf("%s may receive %s", p.name, subject)
			}
		}
		for other, name := range userNames {
			if other != who && p.maySubscribe("_INBOX_"+name+".>") {
				t.Errorf("%s may receive the answers of %s", p.name, name)
			}
		}
		if !p.maySubscribe(embedded.InboxPrefix(p.name) + ".>") {
			t.Errorf("%s may not receive its own answers", p.name)
		}
		if live := p.maySubscribe("yard.events.>"); live != (who != 'p' && who != 'q') {
			t.Errorf("%s may receive events: %v", p.name, live)
		}
	}
	after := streamsOf(t, cl)
	for _, stream := range []string{"YARD_DLQ", "YARD_JOBS_0", "YARD_JOBS_1", "YARD_JOBS_2", "YARD_BLOBS", "YARD_LOGS"} {
		if after[stream] != before[stream] {
			t.Errorf("stream %s had %d messages, now %d", stream, before[stream], after[stream])
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d streams, now %d", len(before), len(after))
	}
}

// refusedByNode checks that a request to the JetStream API is answered with an error, so
// that the user's client does not wait.
func refusedByNode(t *testing.T, p *userConn, subject string) {
	t.Helper()
	reply, err := p.ask(subject, `{"stream_name":"YARD_EVENTS","name":"MINE","subjects":["mine"],"config":{"name":"d"}}`)
	var said struct {
		Type  string
		Error struct {
			Code        int
			Description string
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(reply), &said)
	}
	if err != nil || said.Error.Code != 403 || !strings.Contains(said.Error.Description, "is not permitted") || !strings.HasSuffix(said.Type, "_response") {
		t.Errorf("%s of %s: %s, %v; want an error of JetStream", subject, p.name, reply, err)
	}
}

// mayRequest lists, for each endpoint, the users that may send requests to it. An endpoint
// without an entry is reserved to the operator.
var mayRequest = map[string]string{
	"enqueue": "pa", "call": "pa", "exec-command": "", // by queue or command, see below
	"snapshot": "woa", "status": "woa", "openapi": "pqwoa", "job-bulk": "pqa",
	"job-show": "pqwoa", "job-wait": "pqwoa", "job-explain": "oa", "job-result": "pqwoa", "job-params": "pqwoa", "worker-list": "oa", "job-logs": "oa", "job-errors": "oa", "job-list": "oa",
	"cron-list": "oa", "cron-show": "oa", "ledger-hash": "oa", "queue-list": "oa", "queue-show": "oa", "queue-explain": "oa",
	"dlq-list": "oa", "dlq-show": "oa", "dlq-stats": "oa", "cluster-members": "oa", "cluster-scrub": "oa", "retention-show": "oa",
	"schema-list": "oa", "schema-show": "oa", "limit-list": "oa", "limit-show": "oa",
	"overview": "oa", "state-at": "oa", "state-diff": "oa", "job-find": "oa",
	"operation-list": "oa", "operation-show": "oa", "operation-preview": "oa",
	"health": "woa", "readiness": "woa",
}

// endpoints tries each role at every endpoint that a node lists.
func endpoints(t *testing.T, cl *clustertest.Cluster, conns map[byte]*userConn) {
	all := map[string]string{"yard.exec.QueueDispatch": "wa", "yard.exec.MarkNotified": "wa", "yard.exec.MarkDelivered": "wa",
		"yard.exec.MarkFailed": "wa", "yard.exec.AcquireAuthority": "a", "yard.exec.RenewAuthority": "a", "yard.exec.RequestReplay": "a",
		"yard.exec.CaptureSnapshot": "a", "yard.jobs.mail": "pqa", "yard.jobs.other": "pa", "yard.enqueue.mail": "pqa", "yard.call.mail": "pqa"}
	for _, service := range []string{"yard-api", "yard-node"} {
		output := requestEach(t, cl.Members[0], "$SRV.INFO."+service+".n1", 1, func(i *micro.Info) string { return i.ID })
		for _, e := range output["n1"].Endpoints {
			allowed, known := mayRequest[e.Name]
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
		t.Fatalf("only the endpoints %v", all)
	}
	for subject, allowed := range all {
		for who, p := range conns {
			// Without a reply subject nothing but an enqueue is executed.
			if may := p.mayPublish(subject, "", []byte("no job")); may != strings.ContainsRune(allowed, rune(who)) {
				t.Errorf("%s may send requests to %s: %v", p.name, subject, may)
			}
		}
	}
}

// roleActions checks what each role is for.
func roleActions(t *testing.T, cl *clustertest.Cluster, conns map[byte]*userConn) {
	must := func(who byte, subject, body string) (answer string) {
		t.Helper()
		cl.Eventually(userNames[who]+" is answered on "+subject, func() (err error) {
			answer, err = conns[who].ask(subject, body)
			return err
		})
		return answer
	}
	var accepted struct{ ID, Queue string }
	if err := json.Unmarshal([]byte(must('q', "yard.enqueue.mail", `{"function":"f","id":"k1"}`)), &accepted); err != nil || accepted.Queue != "mail" {
		t.Errorf("%+v, %v", accepted, err)
	}
	if ack := must('q', "yard.jobs.mail", `{"function":"f"}`); !strings.Contains(ack, `"stream":"YARD_JOBS_`) {
		t.Errorf("a lane answered %s", ack)
	}
	must('p', "yard.enqueue.other", `{"function":"f"}`)
	must('p', "yard.jobs.other", `{"function":"f"}`)
	must('p', "yard.api.v1.job.bulk", `{"queue":"mail","jobs":[{"function":"g"}]}`)
	for _, who := range []byte("pwoa") {
		if shown := must(who, "yard.api.v1.job.show", `{"id":"`+accepted.ID+`"}`); !strings.Contains(shown, `"queue":"mail"`) {
			t.Errorf("%s got %s", userNames[who], shown)
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
	// A command cannot be sent under the name of another.
	if output, err := conns['w'].ask("yard.exec.MarkFailed", `{"command":"AcquireAuthority","owner":"n2","lease_id":"x","leased_until":"x"}`); err == nil || !strings.Contains(err.Error(), "the subject names") {
		t.Errorf("a command under another command's name: %s, %v", output, err)
	}
}

// roleReads checks that the observer can use NATS' own tools.
func roleReads(t *testing.T, cl *clustertest.Cluster, conns map[byte]*userConn) {
	for _, who := range []byte("oa") {
		p := conns[who]
		js, err := jetstream.New(p.nc)
		if err != nil {
			t.Fatal(err)
		}
		names := 0
		for range js.StreamNames(shortContext(t)).Name() {
			names++
		}
		if names < 10 {
			t.Errorf("%s sees %d streams", p.name, names)
		}
		events, err := js.OrderedConsumer(shortContext(t), "YARD_EVENTS", jetstream.OrderedConsumerConfig{})
		if err != nil {
			t.Fatalf("%s reads history: %v", p.name, err)
		}
		if m, err := events.Next(jetstream.FetchMaxWait(time.Minute)); err != nil || len(m.Data()) == 0 {
			t.Errorf("%s reads history: %v", p.name, err)
		}
		nodes, err := js.KeyValue(shortContext(t), "YARD_NODES")
		if err != nil {
			t.Fatal(err)
		}
		watch, err := nodes.WatchAll(shortContext(t))
		if err != nil {
			t.Fatalf("%s watches a board: %v", p.name, err)
		}
		seen := map[string]bool{}
		for len(seen) < 3 && !t.Failed() {
			select {
			case row := <-watch.Updates():
				if row != nil { // nil ends the initial values
					seen[row.Key()] = true
				}
			case <-time.After(time.Minute):
				t.Errorf("%s sees only the nodes %v", p.name, seen)
			}
		}
		if err := watch.Stop(); err != nil {
			t.Errorf("%s: the watch has ended: %v", p.name, err)
		}
	}
	client, err := cluster.Dial(context.Background(), cl.Members[1].Node().Addresses().NATS, cluster.DialOptions{User: "eye", Password: "pw-eye"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	told := 0
	if err := client.History(shortContext(t), time.Time{}, false, func(streams.Batch) error { told++; return nil }); err != nil || told == 0 {
		t.Errorf("%d batches, %v", told, err)
	}
	live := make(chan *nats.Msg, 64)
	if _, err := conns['o'].nc.ChanSubscribe("yard.events.>", live); err != nil {
		t.Fatal(err)
	}
	cl.Eventually("the observer receives the event of a job", func() error {
		cl.Members[2].Enqueue(t, "mail", `{"function":"f"}`)
		select {
		case <-live:
			return nil
		case <-time.After(time.Second):
			return context.DeadlineExceeded
		}
	})
}

// replies checks that no answer is published to a subject to which the client may not
// publish. Nodes, lanes and JetStream publish answers themselves, with full permissions.
func replies(t *testing.T, cl *clustertest.Cluster, conns map[byte]*userConn) {
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
	// A dead letter that could be lost.
	cl.Members[0].Request("yard.jobs.mail", "no job", nil)
	waitDeadLetter(t, cl, "mail")
	authority := cl.WaitAuthority()
	before := streamsOf(t, cl)
	for who, subjects := range ways {
		p := conns[who]
		for _, subject := range subjects {
			for _, target := range targets {
				if !p.mayPublish(subject, target, []byte(`{"seq":1,"id":"k1"}`)) {
					t.Errorf("%s may not send requests to %s", p.name, subject)
				}
			}
		}
	}
	// Requests of one connection are executed in order: one more request to each
	// subject is answered after all others.
	for who, subjects := range ways {
		for _, subject := range subjects {
			if _, err := conns[who].nc.Request(subject, []byte(`{"seq":1,"id":"k1"}`), 10*time.Second); err != nil {
				t.Errorf("request of %s to %s: %v", userNames[who], subject, err)
			}
		}
	}
	_, js := connect(t, cl.Members[0])
	for lane := range 3 {
		stream, err := js.Stream(shortContext(t), fmt.Sprintf("YARD_JOBS_%d", lane))
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"p", "n"} {
			if m, err := stream.GetLastMsgForSubject(shortContext(t), fmt.Sprintf("yard.lane.%d.%s.forged", lane, kind)); err == nil {
				t.Errorf("an answer became a job: %s", m.Data)
			}
		}
	}
	after := streamsOf(t, cl)
	for _, stream := range []string{"YARD_LOGS", "YARD_BLOBS"} {
		if after[stream] != before[stream] {
			t.Errorf("stream %s had %d messages, now %d", stream, before[stream], after[stream])
		}
	}
	for _, stream := range []string{"YARD_DLQ", "YARD_JOBS_0", "YARD_JOBS_1", "YARD_JOBS_2", "YARD_EVENTS"} { // which must not grow
		if after[stream] < before[stream] {
			t.Errorf("stream %s had %d messages, now %d", stream, before[stream], after[stream])
		}
	}
	if cl.WaitAuthority() != authority {
		t.Error("an answer moved the authority")
	}
	for _, stream := range []string{"YARD_EVENTS", "YARD_RESULTS"} {
		s, err := js.Stream(shortContext(t), stream)
		if err != nil {
			t.Fatal(err)
		}
		for seq := s.CachedInfo().State.FirstSeq; seq <= s.CachedInfo().State.LastSeq; seq++ {
			if m, err := s.GetMsg(shortContext(t), seq); err == nil && m.Header.Get("Yard-First") == "" {
				t.Errorf("stream %s has at %d a message that no node published: %.100s", stream, seq, m.Data)
			}
		}
	}
}

// otherInboxes checks that no answer reaches the inbox of another user, at the same node
// or another, whatever reply subject a request names.
func otherInboxes(t *testing.T, cl *clustertest.Cluster, conns map[byte]*userConn) {
	received := map[byte]*nats.Subscription{}
	for who, p := range conns {
		sub, err := p.nc.SubscribeSync(embedded.InboxPrefix(p.name) + ".other")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		received[who] = sub
	}
	ways := map[byte][]string{
		'p': {"yard.jobs.mail", "yard.enqueue.mail", "yard.api.v1.job.show"}, 'q': {"yard.jobs.mail", "yard.enqueue.mail"},
		'w': {"yard.snapshot", "yard.status", "yard.node.n2.health", "yard.api.v1.job.show"},
		'o': {"yard.api.v1.queue.list", "$SRV.PING", "$JS.API.INFO", "$JS.API.STREAM.INFO.YARD_DLQ", "$JS.API.STREAM.CREATE.MINE",
			"$JS.API.DIRECT.GET.YARD_JOBS_0", "$JS.API.CONSUMER.CREATE.YARD_DLQ.x"},
	}
	ways['a'] = append([]string{"yard.exec", "yard.enqueue.mail"}, ways['o']...)
	const body = `{"seq":1,"function":"f"}`
	for who, subjects := range ways {
		for _, subject := range subjects {
			for other, name := range userNames {
				if other != who && !conns[who].mayPublish(subject, embedded.InboxPrefix(name)+".other", []byte(body)) {
					t.Errorf("%s may not send requests to %s", userNames[who], subject)
				}
			}
			// The last request is answered after those before it.
			if _, err := conns[who].nc.Request(subject, []byte(body), 10*time.Second); err != nil {
				t.Errorf("request of %s to %s: %v", userNames[who], subject, err)
			}
		}
	}
	for who, sub := range received {
		if err := conns[who].nc.Flush(); err != nil {
			t.Fatal(err)
		}
		for n, _, _ := sub.Pending(); n > 0; n-- {
			if m, err := sub.NextMsg(time.Second); err == nil {
				t.Errorf("%s received an answer to a request of another user: %.100s", userNames[who], m.Data)
			}
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

// consumers checks that a user's consumer can only deliver to an inbox, and that no user
// can delete the consumers of nodes.
func consumers(t *testing.T, cl *clustertest.Cluster, conns map[byte]*userConn) {
	nc, _ := connect(t, cl.Members[0])
	for _, subject := range []string{"yard.history", "yard.lane.0.n.mail", "yard.node.n1.assign", "$KV.YARD_QUEUES.mail", "$JS.API.STREAM.PURGE.YARD_DLQ", "elsewhere", "_INBOX_shop.x", "_INBOX.x", "_INBOX_eye"} {
		output, err := conns['o'].ask("$JS.API.CONSUMER.CREATE.YARD_DLQ.c", `{"stream_name":"YARD_DLQ","config":{"name":"c","deliver_subject":"`+subject+`"}}`)
		if err != nil || !strings.Contains(output, "deliver to an inbox of their user") {
			t.Errorf("a consumer that delivers to %s: %s, %v", subject, output, err)
		}
	}
	output, err := conns['o'].ask("$JS.API.CONSUMER.CREATE.YARD_DLQ.mine", `{"stream_name":"YARD_DLQ","config":{"name":"mine"}}`)
	if err != nil || strings.Contains(output, `"error"`) {
		t.Fatalf("%s, %v", output, err)
	}
	if output, err = conns['o'].ask("$JS.API.CONSUMER.DELETE.YARD_DLQ.mine", ""); err != nil || !strings.Contains(output, `"success":true`) {
		t.Errorf("%s, %v", output, err)
	}
	if output, err = conns['o'].ask("$JS.API.CONSUMER.DELETE.YARD_DLQ.none", ""); err != nil || !strings.Contains(output, `"error"`) {
		t.Errorf("%s, %v", output, err)
	}
	_ = nc
}
