package nodetest_test

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

// streams are all streams there are, the smallest first.
func (s *standIn) streams(ctx context.Context) (infos []*jetstream.StreamInfo, err error) {
	list := s.js.ListStreams(ctx)
	for i := range list.Info() {
		infos = append(infos, i)
	}
	sort.Slice(infos, func(a, b int) bool { return infos[a].State.Bytes < infos[b].State.Bytes })
	return infos, list.Err()
}

func (s *standIn) streamList(ctx context.Context, g given) (string, error) {
	streams, err := s.streams(ctx)
	t := table{title: "Streams", head: []string{"Name", "Description", "Created", "Messages", "Size", "Last Message"}}
	for _, i := range streams {
		if g.has("-a") || !strings.HasPrefix(i.Config.Name, "KV_") {
			t.add(i.Config.Name, i.Config.Description, i.Created.UTC().Format(stamp), count(i.State.Msgs), size(i.State.Bytes), ago(i.State.LastTime))
		}
	}
	return t.String(), err
}

func (s *standIn) streamReport(ctx context.Context, _ given) (string, error) {
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
		t.add(i.Config.Name, i.Config.Storage.String(), "", fmt.Sprint(i.State.Consumers), count(i.State.Msgs), size(i.State.Bytes),
			"0", fmt.Sprint(i.State.NumDeleted), level, peers(i.Cluster))
	}
	return "Obtaining Stream stats\n\n" + t.String(), err
}

// peers names a stream's leader with a star, and with a mark who is behind.
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

func (s *standIn) stream(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	stream, err := s.js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	return stream.CachedInfo(), nil
}

func (s *standIn) streamInfo(ctx context.Context, g given) (string, error) {
	m, err := s.nc.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+g.word(2), nil)
	if err != nil || !g.has("--json") {
		return "", errors.Join(err, errNotKnown)
	}
	return string(m.Data), nil
}

func (s *standIn) streamSubjects(ctx context.Context, g given) (string, error) {
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
	if width := longest + len(count(most)); width < 20 {
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
			cells[2*i], cells[2*i+1] = name, count(held[name])
		}
		t.add(cells...)
	}
	return t.String(), nil
}

func (s *standIn) streamGet(ctx context.Context, g given) (string, error) {
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
	said := fmt.Sprintf("Item: %s#%d received %s (%s) on Subject %s\n", g.word(2), m.Seq, m.Time, ago(m.Time), m.Subject)
	if len(m.Hdrs) > 0 {
		head, err := nats.DecodeHeadersMsg(m.Hdrs)
		if err != nil {
			return "", err
		}
		said += "Headers:\n  " + strings.Join(headersOf(&nats.Msg{Header: head}), "\n  ") + "\n"
	}
	return said + string(m.Data), nil
}

func (s *standIn) streamView(ctx context.Context, g given) (string, error) {
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
	defer func() { _ = stream.DeleteConsumer(ctx, c.CachedInfo().Name) }() // or it goes by itself
	batch, err := c.FetchNoWait(n)
	if err != nil {
		return "", err
	}
	said := ""
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return "", err
		}
		said += fmt.Sprintf("[%d] Subject: %s Received: %s\n", meta.Sequence.Stream, m.Subject(), meta.Timestamp.UTC().Format(stamp))
		for _, line := range headersOf(&nats.Msg{Header: m.Headers()}) {
			said += "  " + line + "\n"
		}
		said += string(m.Data()) + "\n"
	}
	return said, batch.Error()
}

func (s *standIn) consumerList(ctx context.Context, g given) (string, error) {
	stream, err := s.js.Stream(ctx, g.word(2))
	if err != nil {
		return "", err
	}
	list := stream.ConsumerNames(ctx)
	for name := range list.Name() {
		return "", fmt.Errorf("consumer %s is there: %w", name, errNotKnown)
	}
	return "No Consumers defined", list.Err()
}

// eachInstance hears what every instance says, until nobody has said anything
// for a while: so does nats.
func (s *standIn) eachInstance(verb string, g given, heard func(text []byte) error) error {
	subject := "$SRV." + verb
	for _, name := range g.words[2:] {
		subject += "." + name
	}
	inbox := s.nc.NewRespInbox()
	sub, err := s.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // it ends with the connection
	if err := s.nc.PublishRequest(subject, inbox, []byte("{}")); err != nil {
		return err
	}
	for {
		m, err := sub.NextMsg(300 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			return nil
		}
		if err == nil {
			err = heard(m.Data)
		}
		if err != nil {
			return err
		}
	}
}

func instancesOf[T any](s *standIn, verb string, g given) (said []T, err error) {
	err = s.eachInstance(verb, g, func(text []byte) error {
		var v T
		err := json.Unmarshal(text, &v)
		said = append(said, v)
		return err
	})
	return said, err
}

func (s *standIn) microList(_ context.Context, g given) (string, error) {
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

func (s *standIn) microPing(_ context.Context, g given) (said string, err error) {
	began := time.Now()
	err = s.eachInstance("PING", g, func(text []byte) error {
		var p micro.Ping
		err := json.Unmarshal(text, &p)
		said += fmt.Sprintf("%-50s rtt=%s\n", p.Name+" "+p.ID, long(time.Since(began)))
		return err
	})
	return said, err
}

func (s *standIn) microInfo(_ context.Context, g given) (string, error) {
	infos, err := instancesOf[micro.Info](s, "INFO", g)
	if err != nil || len(infos) != 1 || !g.has("--json") {
		return "", fmt.Errorf("%d instances: %w", len(infos), errors.Join(err, errNotKnown))
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

func (s *standIn) microStats(_ context.Context, g given) (string, error) {
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
			t.add(id, e.Name, fmt.Sprint(e.NumRequests), e.QueueGroup, fmt.Sprint(e.NumErrors), long(e.ProcessingTime), long(e.AverageProcessingTime))
			requests, refused, took, id = requests+e.NumRequests, refused+e.NumErrors, took+e.ProcessingTime, ""
		}
	}
	t.foot = []string{"", "", fmt.Sprint(requests), "", fmt.Sprint(refused), long(took), long(took / time.Duration(max(requests+refused, 1)))}
	return t.String(), err
}

// jq takes out of JSON what a path names, or some keys of it: ".a.b", ".a[0]",
// ".[]", "{a,b}". With -c on one line.
func jq(args []string, text string) (string, error) {
	compact := args[0] == "-c"
	filter := args[len(args)-1]
	said := ""
	for dec := json.NewDecoder(strings.NewReader(text)); ; {
		var v json.RawMessage
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return said, nil
		} else if err != nil {
			return "", fmt.Errorf("%q is no JSON: %w", text, err)
		}
		found, err := pick([]json.RawMessage{v}, filter)
		if err != nil {
			return "", err
		}
		for _, v := range found {
			said += lay(v, compact) + "\n"
		}
	}
}
