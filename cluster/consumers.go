package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"yardmaster/internal/backoff"
)

// Users who have a role read streams by consumers, and a consumer writes to
// whatever subject it was told to. So those of users are made and removed by
// their node, which looks at what is asked for first, and marks them.

// SubjectConsumers leads to this node: .CREATE.<stream>.<name>[.<filter>] and
// .DELETE.<stream>.<name>, as JetStream's own.
const (
	SubjectConsumers = "yard.consumers"
	consumerCreate   = "CREATE."
	consumerDelete   = "DELETE."
)

// Bounds of users' consumers.
const (
	consumersAtOnce  = 16              // made or removed by one node
	consumersOfOne   = 256             // of one stream
	consumerIdle     = 5 * time.Minute // at most, until an idle one is forgotten
	consumerPatience = 4 * time.Second
	consumerPause    = 5 * time.Millisecond // between two looks at a new one
	metaClient       = "io.yard.client"     // marks a user's consumer
)

// readerKeys are what a user may ask of a consumer.
var readerKeys = []string{
	"name", "durable_name", "description", "deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy", "ack_wait",
	"max_deliver", "filter_subject", "filter_subjects", "replay_policy", "sample_freq", "rate_limit_bps", "max_waiting",
	"max_ack_pending", "idle_heartbeat", "flow_control", "headers_only", "max_batch", "max_expires", "max_bytes",
	"deliver_subject", "inactive_threshold", "num_replicas", "mem_storage", "metadata", "backoff",
}

// asksConsumers tells the verbs under $JS.API.CONSUMER that nodes answer.
func asksConsumers(verb string) bool {
	return strings.HasPrefix(verb, consumerCreate) || strings.HasPrefix(verb, consumerDelete)
}

// readers makes and removes users' consumers.
type readers struct {
	c    *Cluster
	work errgroup.Group
	ctx  context.Context
	end  context.CancelFunc
}

func (c *Cluster) openReaders() (*readers, error) {
	r := &readers{c: c}
	r.work.SetLimit(consumersAtOnce)
	r.ctx, r.end = context.WithCancel(context.Background())
	prefix := localSubject(c.cfg.Node, SubjectConsumers) + "."
	_, err := c.api.nc.Subscribe(prefix+">", func(m *nats.Msg) {
		verb := strings.TrimPrefix(m.Subject, prefix)
		if !r.work.TryGo(func() error { r.answer(m, verb); return nil }) {
			r.refuse(m, verb, 503, "too many consumers are being made at once: try again")
		}
	})
	return r, err
}

// close gives up what is under way and waits for it.
func (r *readers) close() {
	r.end()
	_ = r.work.Wait() // its functions return no errors
}

func (r *readers) answer(m *nats.Msg, verb string) {
	var answer *nats.Msg
	var err error
	if rest, create := strings.CutPrefix(verb, consumerCreate); create {
		answer, err = r.create(rest, m.Data)
	} else {
		answer, err = r.remove(strings.TrimPrefix(verb, consumerDelete))
	}
	if err != nil {
		r.refuse(m, verb, 403, err.Error())
		return
	}
	if err := m.Respond(answer.Data); err != nil {
		r.c.log.Debug("answer about a consumer is not sent", "error", err)
	}
}

// refuse answers as JetStream would, so that its tools can show it.
func (r *readers) refuse(m *nats.Msg, verb string, code int, why string) {
	kind := "create"
	if strings.HasPrefix(verb, consumerDelete) {
		kind = "delete"
	}
	text, err := json.Marshal(map[string]any{
		"type": "io.nats.jetstream.api.v1.consumer_" + kind + "_response", "error": apiError{Code: code, Description: why},
	})
	if err == nil {
		err = m.Respond(text)
	}
	if err != nil {
		r.c.log.Debug("answer about a consumer is not sent", "error", err)
	}
}

// create makes a consumer of "<stream>.<name>[.<filter>]" or "<stream>".
func (r *readers) create(target string, question []byte) (*nats.Msg, error) {
	var asked struct {
		Stream string                     `json:"stream_name"`
		Config map[string]json.RawMessage `json:"config"`
		Action string                     `json:"action,omitempty"`
	}
	if err := json.Unmarshal(question, &asked); err != nil {
		return nil, fmt.Errorf("consumer's configuration is not readable: %w", err)
	}
	if asked.Config == nil {
		asked.Config = map[string]json.RawMessage{}
	}
	if err := reader(asked.Config); err != nil {
		return nil, err
	}
	stream, _, _ := strings.Cut(target, ".")
	if err := r.room(stream); err != nil {
		return nil, err
	}
	body, err := json.Marshal(asked)
	if err != nil {
		return nil, err
	}
	made, err := r.ask(apiConsumer+consumerCreate+target, body)
	if err == nil {
		r.awaitEar(made.Data)
	}
	return made, err
}

// awaitEar waits until a consumer that was just made can be asked for messages
// from here. Members tell each other of the yard's subjects on a route of its
// own, so the word that it is made may come before the word where it listens,
// and who asks in between hears that nobody does. A question that cannot be
// read is answered like any other and takes no message.
func (r *readers) awaitEar(made []byte) {
	var info struct {
		Stream string `json:"stream_name"`
		Name   string `json:"name"`
		Config struct {
			Deliver string `json:"deliver_subject"`
		} `json:"config"`
	}
	if json.Unmarshal(made, &info) != nil || info.Name == "" || info.Config.Deliver != "" {
		return // a refusal, or one that delivers by itself
	}
	for end := time.Now().Add(consumerPatience); time.Now().Before(end); {
		_, err := r.ask(apiConsumer+"MSG.NEXT."+info.Stream+"."+info.Name, []byte("{"))
		if !errors.Is(err, errNoResponders) || backoff.Sleep(r.ctx, consumerPause) != nil {
			return
		}
	}
}

// reader makes a consumer's configuration one that harms nobody: it delivers to
// an inbox, is held in memory and is forgotten when nobody reads.
func reader(config map[string]json.RawMessage) error {
	for key := range config {
		if !slices.Contains(readerKeys, key) {
			return fmt.Errorf("a consumer of the yard's streams has no %q here; it only reads", key)
		}
	}
	if raw, pushed := config["deliver_subject"]; pushed {
		var subject string
		if err := json.Unmarshal(raw, &subject); err != nil || subject != "" && !strings.HasPrefix(subject, "_INBOX") {
			return fmt.Errorf("a consumer of the yard's streams delivers to an inbox, and %s is none", raw)
		}
	}
	var idle time.Duration
	if raw, given := config["inactive_threshold"]; given {
		if err := json.Unmarshal(raw, &idle); err != nil {
			return fmt.Errorf("inactive_threshold: %w", err)
		}
	}
	if idle <= 0 || idle > consumerIdle {
		idle = consumerIdle
	}
	var meta map[string]string
	if raw, given := config["metadata"]; given {
		if err := json.Unmarshal(raw, &meta); err != nil {
			return fmt.Errorf("metadata: %w", err)
		}
	}
	if meta == nil {
		meta = map[string]string{}
	}
	meta[metaClient] = "true"
	for key, value := range map[string]any{
		"inactive_threshold": idle, "metadata": meta, "mem_storage": true, "num_replicas": 1, "ack_policy": "none",
	} {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		config[key] = text
	}
	return nil
}

// room refuses more consumers than a stream is to carry.
func (r *readers) room(stream string) error {
	ctx, cancel := context.WithTimeout(r.ctx, consumerPatience)
	defer cancel()
	info, err := r.c.streamInfo(ctx, stream)
	if err != nil {
		return err
	}
	if info.State.Consumers >= consumersOfOne {
		return fmt.Errorf("stream %s has %d consumers, and may have no more; an idle one is forgotten after %s", stream, info.State.Consumers, consumerIdle)
	}
	return nil
}

// remove removes "<stream>.<name>" if it is a user's.
func (r *readers) remove(target string) (*nats.Msg, error) {
	answer, err := r.ask(apiConsumer+"INFO."+target, nil)
	if err != nil {
		return nil, err
	}
	var info struct {
		Config struct {
			Metadata map[string]string `json:"metadata"`
		} `json:"config"`
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &info); err != nil {
		return nil, fmt.Errorf("consumer %s: %w", target, err)
	}
	if info.Error == nil && info.Config.Metadata[metaClient] == "" {
		return nil, fmt.Errorf("consumer %s is the yard's own", target)
	}
	return r.ask(apiConsumer+consumerDelete+target, nil) // one that is not there is JetStream's to tell of
}

func (r *readers) ask(subject string, body []byte) (*nats.Msg, error) {
	return r.c.api.ask(r.ctx, &nats.Msg{Subject: subject, Data: body}, consumerPatience)
}
