package clustertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// natsCLI sends the same requests as the program `nats` and formats the answers alike,
// for the commands and flags that the tour uses.
type natsCLI struct {
	t  *testing.T
	nc *nats.Conn
	js jetstream.JetStream
}

func newNATSCLI(t *testing.T, m *clustertest.Member) *natsCLI {
	nc, js := connect(t, m)
	return &natsCLI{t, nc, js}
}

// cliArgs is a parsed command line: positional arguments and flags.
type cliArgs struct {
	words []string
	flags map[string]string
	heads []string
}

// takesValue lists the flags that take a value.
var takesValue = []string{"-H", "-e", "--count", "--stream", "--since", "--subjects", "--bucket", "--key", "--subject", "--payload", "--match-payload"}

func parseArgs(args []string) cliArgs {
	g := cliArgs{flags: map[string]string{}}
	for i := 0; i < len(args); i++ {
		a := args[i]
		if !strings.HasPrefix(a, "-") {
			g.words = append(g.words, a)
			continue
		}
		value := ""
		if slices.Contains(takesValue, a) {
			i++
			value = args[i]
		}
		if a == "-H" {
			g.heads = append(g.heads, value)
		}
		g.flags[a] = value
	}
	return g
}

func (g *cliArgs) has(flag string) bool { _, has := g.flags[flag]; return has }

func (g *cliArgs) word(i int) string {
	if i < len(g.words) {
		return g.words[i]
	}
	return ""
}

func (s *natsCLI) Do(args []string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second) // as in nats
	defer cancel()
	g := parseArgs(args)
	verb := g.word(0)
	if !slices.Contains([]string{"pub", "req"}, verb) {
		verb += " " + g.word(1)
	}
	if verb == "server check" {
		verb += " " + g.word(2)
	}
	do, known := map[string]func(context.Context, cliArgs) (string, error){
		"pub": s.pub, "req": s.req,
		"stream ls": s.streamList, "stream report": s.streamReport, "stream info": s.streamInfo,
		"stream subjects": s.streamSubjects, "stream get": s.streamGet, "stream view": s.streamView,
		"consumer ls": s.consumerList,
		"kv ls":       s.kvList, "kv get": s.kvGet, "kv history": s.kvHistory,
		"micro ls": s.microList, "micro info": s.microInfo, "micro stats": s.microStats, "micro ping": s.microPing,
		"server report":       s.serverReport,
		"server check stream": s.checkStream, "server check kv": s.checkKV,
		"server check jetstream": s.checkJetStream, "server check request": s.checkRequest,
	}[verb]
	if !known {
		return "", fmt.Errorf("nats %s: %w", verb, errUnknownDirective)
	}
	return do(ctx, g)
}

// message returns the message that pub and req send.
func (g *cliArgs) message() *nats.Msg {
	m := nats.NewMsg(g.word(1))
	m.Data = []byte(g.word(2))
	for _, h := range g.heads {
		name, value, _ := strings.Cut(h, ":")
		m.Header.Add(name, strings.TrimSpace(value))
	}
	return m
}

func clock() string { return time.Now().UTC().Format("15:04:05 ") }

func (s *natsCLI) pub(ctx context.Context, g cliArgs) (string, error) {
	m := g.message()
	output := fmt.Sprintf("%sPublished %d bytes to %q\n", clock(), len(m.Data), m.Subject)
	if !g.has("-J") {
		if err := s.nc.PublishMsg(m); err != nil {
			return "", err
		}
		if err := errors.Join(s.nc.FlushWithContext(ctx), s.nc.LastError()); err != nil {
			return "nats: error: " + err.Error(), nil
		}
		return output, nil
	}
	answer, err := s.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return "", err
	}
	var ack struct {
		Stream    string
		Seq       uint64
		Duplicate bool
		Error     *jetstream.APIError
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil || ack.Error != nil {
		return "", fmt.Errorf("%s, %w", answer.Data, err)
	}
	output += fmt.Sprintf("%sStored in Stream: %s Sequence: %d", clock(), ack.Stream, ack.Seq)
	if ack.Duplicate {
		output += " Duplicate: true"
	}
	return output, nil
}

func (s *natsCLI) req(ctx context.Context, g cliArgs) (string, error) {
	m, began := g.message(), time.Now()
	answer, err := s.nc.RequestMsgWithContext(ctx, m)
	if errors.Is(err, nats.ErrNoResponders) {
		return clock() + "No responders are available", nil
	}
	if err != nil || g.has("--raw") {
		return bodyOf(answer), err
	}
	output := fmt.Sprintf("%sSending request on %q\n%sReceived with rtt %s\n", clock(), m.Subject, clock(), time.Since(began))
	for _, line := range headersOf(answer) {
		output += clock() + line + "\n"
	}
	return output + bodyOf(answer), nil
}

func bodyOf(m *nats.Msg) string {
	switch {
	case m == nil:
		return ""
	case len(m.Data) == 0:
		return "nil body"
	}
	return string(m.Data)
}

func headersOf(m *nats.Msg) (lines []string) {
	for name, values := range m.Header {
		for _, value := range values {
			lines = append(lines, name+": "+value)
		}
	}
	slices.Sort(lines)
	return lines
}

// Follow subscribes, as sub, events and kv watch do.
func (s *natsCLI) Follow(args []string) (output func() string, stop func(), err error) {
	g, out := parseArgs(args), &outputBuffer{}
	ctx, cancel := context.WithCancel(s.t.Context())
	var work sync.WaitGroup
	stop = sync.OnceFunc(func() { cancel(); work.Wait() })
	switch verb := g.word(0); {
	case verb == "sub":
		fmt.Fprintf(out, "%sSubscribing on %s\n", clock(), g.word(1))
		last, _ := strconv.Atoi(g.flags["--count"]) // 0 means unlimited
		err = s.listen(ctx, &work, g.word(1), func(n int, m *nats.Msg) {
			if last > 0 && n > last {
				return
			}
			fmt.Fprintf(out, "[#%d] Received on %q\n%s\n", n, m.Subject, bodyOf(m))
		})
	case verb == "events" && g.has("--subjects"):
		err = s.listen(ctx, &work, g.flags["--subjects"], func(_ int, m *nats.Msg) { fmt.Fprintln(out, bodyOf(m)) })
	case verb == "events":
		err = s.readBack(ctx, &work, g, out)
	case verb == "kv":
		err = s.kvWatch(ctx, &work, g, out)
	default:
		err = errUnknownDirective
	}
	return out.String, stop, err
}

// listen calls fn for each message until ctx ends.
func (s *natsCLI) listen(ctx context.Context, work *sync.WaitGroup, subject string, fn func(n int, m *nats.Msg)) error {
	sub, err := s.nc.SubscribeSync(subject)
	if err == nil {
		err = s.nc.Flush()
	}
	if err != nil {
		return err
	}
	work.Go(func() {
		defer func() { _ = sub.Unsubscribe() }() // the connection is closed next
		for n := 1; ; n++ {
			m, err := sub.NextMsgWithContext(ctx)
			if err != nil {
				return
			}
			fn(n, m)
		}
	})
	return nil
}

// readBack reads a stream from some time ago on, as events --stream does.
func (s *natsCLI) readBack(ctx context.Context, work *sync.WaitGroup, g cliArgs, out *outputBuffer) error {
	since, err := time.ParseDuration(g.flags["--since"])
	if err != nil {
		return err
	}
	start := time.Now().Add(-since)
	c, err := s.js.OrderedConsumer(ctx, g.flags["--stream"], jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &start,
	})
	if err != nil {
		return err
	}
	consuming, err := c.Consume(func(m jetstream.Msg) { fmt.Fprintln(out, string(m.Data())) })
	if err != nil {
		return err
	}
	work.Go(func() {
		<-ctx.Done()
		consuming.Stop()
		<-consuming.Closed()
	})
	return nil
}

var operations = map[jetstream.KeyValueOp]string{
	jetstream.KeyValuePut: "PUT", jetstream.KeyValueDelete: "DEL", jetstream.KeyValuePurge: "PURGE",
}

const stamp = "2006-01-02 15:04:05"

func (s *natsCLI) kvWatch(ctx context.Context, work *sync.WaitGroup, g cliArgs, out *outputBuffer) error {
	kv, err := s.js.KeyValue(ctx, g.word(2))
	if err != nil {
		return err
	}
	key := g.word(3)
	if key == "" {
		key = ">"
	}
	watch, err := kv.Watch(ctx, key)
	if err != nil {
		return err
	}
	work.Go(func() {
		defer func() { _ = watch.Stop() }() // the connection is closed next
		for {
			select {
			case <-ctx.Done():
				return
			case e, open := <-watch.Updates():
				if !open {
					return
				}
				if e != nil { // nil ends the initial values
					fmt.Fprintf(out, "[%s] %s %s > %s: %s\n", e.Created().UTC().Format(stamp), operations[e.Operation()], e.Bucket(), e.Key(), e.Value())
				}
			}
		}
	})
	return nil
}

func (s *natsCLI) kvGet(ctx context.Context, g cliArgs) (string, error) {
	kv, err := s.js.KeyValue(ctx, g.word(2))
	if err != nil {
		return "", err
	}
	e, err := kv.Get(ctx, g.word(3))
	if err != nil || g.has("--raw") {
		if err != nil {
			return "", err
		}
		return string(e.Value()), nil
	}
	return "", fmt.Errorf("kv get without --raw: %w", errUnknownDirective)
}

func (s *natsCLI) kvList(ctx context.Context, g cliArgs) (string, error) {
	if bucket := g.word(2); bucket != "" {
		kv, err := s.js.KeyValue(ctx, bucket)
		if err != nil {
			return "", err
		}
		keys, err := kv.Keys(ctx)
		if errors.Is(err, jetstream.ErrNoKeysFound) {
			return "No keys found in bucket", nil
		}
		return strings.Join(keys, "\n"), err
	}
	streams, err := s.streams(ctx)
	t := table{title: "Key-Value Buckets", head: []string{"Bucket", "Description", "Created", "Size", "Values", "Last Update"}}
	for _, i := range streams {
		if bucket, is := strings.CutPrefix(i.Config.Name, "KV_"); is {
			t.add(bucket, i.Config.Description, i.Created.UTC().Format(stamp), formatSize(i.State.Bytes), formatCount(i.State.Msgs), formatAge(i.State.LastTime))
		}
	}
	return t.String(), err
}

func (s *natsCLI) kvHistory(ctx context.Context, g cliArgs) (string, error) {
	kv, err := s.js.KeyValue(ctx, g.word(2))
	if err != nil {
		return "", err
	}
	entries, err := kv.History(ctx, g.word(3))
	t := table{
		title: fmt.Sprintf("History for %s > %s", g.word(2), g.word(3)),
		head:  []string{"Key", "Revision", "Op", "Created", "Length", "Value"},
	}
	for _, e := range entries {
		value := string(e.Value())
		if len(value) > 40 {
			value = value[:15] + "..." + value[len(value)-15:]
		}
		t.add(e.Key(), fmt.Sprint(e.Revision()), operations[e.Operation()], e.Created().UTC().Format(stamp), formatCount(uint64(len(e.Value()))), value)
	}
	return t.String(), err
}
