package clustertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
)

// streams returns all streams, the smallest first.
func (s *natsCLI) streams(ctx context.Context) (infos []*jetstream.StreamInfo, err error) {
	list := s.js.ListStreams(ctx)
	for i := range list.Info() {
		infos = append(infos, i)
	}
	sort.Slice(infos, func(a, b int) bool { return infos[a].State.Bytes < infos[b].State.Bytes })
	return infos, list.Err()
}

func (s *natsCLI) streamList(ctx context.Context, g cliArgs) (string, error) {
	streams, err := s.streams(ctx)
	t := table{title: "Streams", head: []string{"Name", "Description", "Created", "Messages", "Size", "Last Message"}}
	for _, i := range streams {
		if g.has("-a") || !strings.HasPrefix(i.Config.Name, "KV_") {
			t.add(i.Config.Name, i.Config.Description, i.Created.UTC().Format(stamp), formatCount(i.State.Msgs), formatSize(i.State.Bytes), formatAge(i.State.LastTime))
		}
	}
	return t.String(), err
}

func (s *natsCLI) streamReport(ctx context.Context, _ cliArgs) (string, error) {
	streams, err := s.streams(ctx)
	t := table{
		title: "Stream Report",
		head:  []string{"Stream", "Storage", "Placement", "Consumers", "Messages", "Bytes", "Lost", "Deleted", "API Level", "Replicas"},
	}
	for _, i := range streams {
		level := i.Config.Metadata["_nats.req.level"]
		if level == "" {
			level = "0"
		}
		t.add(i.Config.Name, i.Config.Storage.String(), "", fmt.Sprint(i.State.Consumers), formatCount(i.State.Msgs), formatSize(i.State.Bytes),
			"0", fmt.Sprint(i.State.NumDeleted), level, peers(i.Cluster))
	}
	return "Obtaining Stream stats\n\n" + t.String(), err
}

// peers formats the peers of a stream: a star marks the leader, an exclamation mark a
// lagging replica.
func peers(c *jetstream.ClusterInfo) string {
	names := []string{c.Leader + "*"}
	for _, r := range c.Replicas {
		name := r.Name
		if r.Offline || !r.Current {
			name += "!"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (s *natsCLI) stream(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

func (s *natsCLI) streamInfo(ctx context.Context, g cliArgs) (string, error) {
	m, err := s.nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+g.word(2), nil)
	if err != nil || !g.has("--json") {
		return "", errors.Join(err, errUnknownDirective)
	}
	return string(m.Data), nil
}

func (s *natsCLI) streamSubjects(ctx context.Context, g cliArgs) (string, error) {
	stream, err := s.js.Stream(ctx, g.word(2))
	if err != nil {
		return "", err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return "", err
	}
	held := info.State.Subjects
	if len(held) == 0 {
		return "No subjects found matching >", nil
	}
	names, longest, most := []string{}, 0, uint64(0)
	for name, n := range held {
		names, longest, most = append(names, name), max(longest, len(name)), max(most, n)
	}
	sort.Slice(names, func(a, b int) bool { return held[names[a]] < held[names[b]] })
	columns := 1
	if width := longest + len(formatCount(most)); width < 20 {
		columns = 3
	} else if width < 30 {
		columns = 2
	}
	t := table{title: fmt.Sprintf("%d Subjects in stream %s", len(names), g.word(2))}
	for range columns {
		t.head = append(t.head, "Subject", "Count")
	}
	for row := range slices.Chunk(names, columns) {
		cells := make([]string, 2*columns)
		for i, name := range row {
			cells[2*i], cells[2*i+1] = name, formatCount(held[name])
		}
		t.add(cells...)
	}
	return t.String(), nil
}

func (s *natsCLI) streamGet(ctx context.Context, g cliArgs) (string, error) {
	answer, err := s.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+g.word(2), []byte(`{"seq":`+g.word(3)+`}`))
	if err != nil {
		return "", err
	}
	var got struct {
		Message struct {
			Subject    string
			Seq        uint64
			Hdrs, Data []byte
			Time       time.Time
		}
		Error *jetstream.APIError
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil || got.Error != nil {
		return "", fmt.Errorf("%s, %w", answer.Data, err)
	}
	m := &got.Message
	output := fmt.Sprintf("Item: %s#%d received %s (%s) on Subject %s\n", g.word(2), m.Seq, m.Time, formatAge(m.Time), m.Subject)
	if len(m.Hdrs) > 0 {
		head, err := nats.DecodeHeadersMsg(m.Hdrs)
		if err != nil {
			return "", err
		}
		output += "Headers:\n  " + strings.Join(headersOf(&nats.Msg{Header: head}), "\n  ") + "\n"
	}
	return output + string(m.Data), nil
}

func (s *natsCLI) streamView(ctx context.Context, g cliArgs) (string, error) {
	stream, err := s.js.Stream(ctx, g.word(2))
	if err != nil {
		return "", err
	}
	n := 10
	if size := g.word(3); size != "" {
		if _, err := fmt.Sscan(size, &n); err != nil {
			return "", err
		}
	}
	c, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true, Replicas: 1})
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.DeleteConsumer(ctx, c.CachedInfo().Name) }() // otherwise it expires
	batch, err := c.FetchNoWait(n)
	if err != nil {
		return "", err
	}
	output := ""
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return "", err
		}
		output += fmt.Sprintf("[%d] Subject: %s Received: %s\n", meta.Sequence.Stream, m.Subject(), meta.Timestamp.UTC().Format(stamp))
		for _, line := range headersOf(&nats.Msg{Header: m.Headers()}) {
			output += "  " + line + "\n"
		}
		output += string(m.Data()) + "\n"
	}
	return output, batch.Error()
}

func (s *natsCLI) consumerList(ctx context.Context, g cliArgs) (string, error) {
	stream, err := s.js.Stream(ctx, g.word(2))
	if err != nil {
		return "", err
	}
	list := stream.ConsumerNames(ctx)
	for name := range list.Name() {
		return "", fmt.Errorf("consumer %s exists: %w", name, errUnknownDirective)
	}
	return "No Consumers defined", list.Err()
}

// eachInstance calls fn for the answer of every instance, until no more answers arrive for
// a while, as nats does.
func (s *natsCLI) eachInstance(verb string, g cliArgs, fn func(text []byte) error) error {
	subject := "$SRV." + verb
	for _, name := range g.words[2:] {
		subject += "." + name
	}
	inbox := s.nc.NewRespInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // ends with the connection
	if err := s.nc.PublishRequest(subject, inbox, []byte("{}")); err != nil {
		return err
	}
	for {
		m, err := sub.NextMsg(300 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			return nil
		}
		if err == nil {
			err = fn(m.Data)
		}
		if err != nil {
			return err
		}
	}
}

func instancesOf[T any](s *natsCLI, verb string, g cliArgs) (replies []T, err error) {
	err = s.eachInstance(verb, g, func(text []byte) error {
		var v T
		err := json.Unmarshal(text, &v)
		replies = append(replies, v)
		return err
	})
	return replies, err
}

func (s *natsCLI) microList(_ context.Context, g cliArgs) (string, error) {
	infos, err := instancesOf[micro.Info](s, "INFO", g)
	sort.Slice(infos, func(a, b int) bool { return infos[a].Name+" "+infos[a].ID < infos[b].Name+" "+infos[b].ID })
	t, last := table{title: "All Services", head: []string{"Name", "Version", "ID", "Description"}}, micro.Info{}
	for _, i := range infos {
		unless := func(same, text string) string {
			if same == text {
				return ""
			}
			return text
		}
		t.add(unless(last.Name, i.Name), unless(last.Version, i.Version), i.ID, unless(last.Description, i.Description))
		last = i
	}
	return t.String(), err
}

func (s *natsCLI) microPing(_ context.Context, g cliArgs) (output string, err error) {
	began := time.Now()
	err = s.eachInstance("PING", g, func(text []byte) error {
		var p micro.Ping
		err := json.Unmarshal(text, &p)
		output += fmt.Sprintf("%-50s rtt=%s\n", p.Name+" "+p.ID, formatDuration(time.Since(began)))
		return err
	})
	return output, err
}

func (s *natsCLI) microInfo(_ context.Context, g cliArgs) (string, error) {
	infos, err := instancesOf[micro.Info](s, "INFO", g)
	if err != nil || len(infos) != 1 || !g.has("--json") {
		return "", fmt.Errorf("%d instances: %w", len(infos), errors.Join(err, errUnknownDirective))
	}
	stats, err := instancesOf[micro.Stats](s, "STATS", g)
	if err != nil || len(stats) != 1 {
		return "", fmt.Errorf("%d instances, %w", len(stats), err)
	}
	want, err := regexp.Compile(g.flags["-e"])
	if err != nil {
		return "", err
	}
	infos[0].Endpoints = slices.DeleteFunc(infos[0].Endpoints, func(e micro.EndpointInfo) bool { return !want.MatchString(e.Name) })
	stats[0].Endpoints = slices.DeleteFunc(stats[0].Endpoints, func(e *micro.EndpointStats) bool { return !want.MatchString(e.Name) })
	text, err := json.Marshal(map[string]any{"info": infos[0], "stats": stats[0]})
	return string(text), err
}

func (s *natsCLI) microStats(_ context.Context, g cliArgs) (string, error) {
	stats, err := instancesOf[micro.Stats](s, "STATS", g)
	sort.Slice(stats, func(a, b int) bool { return stats[a].ID < stats[b].ID })
	t := table{
		title: g.word(2) + " Service Statistics",
		head:  []string{"ID", "Endpoint", "Requests", "Queue Group", "Errors", "Processing Time", "Average Time"},
	}
	requests, refused, took := 0, 0, time.Duration(0)
	for _, i := range stats {
		id := i.ID
		for _, e := range i.Endpoints {
			t.add(id, e.Name, fmt.Sprint(e.NumRequests), e.QueueGroup, fmt.Sprint(e.NumErrors), formatDuration(e.ProcessingTime), formatDuration(e.AverageProcessingTime))
			requests, refused, took, id = requests+e.NumRequests, refused+e.NumErrors, took+e.ProcessingTime, ""
		}
	}
	t.foot = []string{"", "", fmt.Sprint(requests), "", fmt.Sprint(refused), formatDuration(took), formatDuration(took / time.Duration(max(requests+refused, 1)))}
	return t.String(), err
}

// jq evaluates a path or a selection of keys: ".a.b", ".a[0]", ".[]", "{a,b}". With -c it
// prints one line.
func jq(args []string, text string) (string, error) {
	compact := args[0] == "-c"
	filter := args[len(args)-1]
	output := ""
	for dec := json.NewDecoder(strings.NewReader(text)); ; {
		var v json.RawMessage
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return output, nil
		} else if err != nil {
			return "", fmt.Errorf("%q is not JSON: %w", text, err)
		}
		found, err := jqPath([]json.RawMessage{v}, filter)
		if err != nil {
			return "", err
		}
		for _, v := range found {
			output += layout(v, compact) + "\n"
		}
	}
}
