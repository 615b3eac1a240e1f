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

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Users with a role read streams with consumers. A consumer publishes to any subject
// that its configuration names, so users cannot create consumers themselves. Their
// node creates and deletes them after it has checked the configuration, and marks
// them in their metadata.

// Limits of users' consumers.
const (
	maxConsumerRequests  = 16              // concurrent requests of one node
	maxUserConsumers     = 256             // per stream
	maxConsumerIdle      = 5 * time.Minute // maximum inactive_threshold
	consumerTimeout      = 4 * time.Second
	consumerPollInterval = 5 * time.Millisecond // between two checks of a new consumer
	metaUserConsumer     = "io.yard.client"     // metadata key of a user's consumer
)

// allowedConsumerKeys are the configuration keys that users may set.
var allowedConsumerKeys = []string{
	"name", "durable_name", "description", "deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy", "ack_wait",
	"max_deliver", "filter_subject", "filter_subjects", "replay_policy", "sample_freq", "rate_limit_bps", "max_waiting",
	"max_ack_pending", "idle_heartbeat", "flow_control", "headers_only", "max_batch", "max_expires", "max_bytes",
	"deliver_subject", "inactive_threshold", "num_replicas", "mem_storage", "metadata", "backoff",
}

// unsetValues lists the JSON values of keys that are not set.
var unsetValues = []string{"null", "false", "0", `""`, "[]", "{}", `"0001-01-01T00:00:00Z"`}

// userConsumers creates and deletes users' consumers.
type userConsumers struct {
	local  *embedded.Server
	work   errgroup.Group
	ctx    context.Context
	cancel context.CancelFunc
}

// startUserConsumers starts to serve the requests of this node's clients.
func startUserConsumers(l *embedded.Server) (*userConsumers, error) {
	u := &userConsumers{local: l}
	u.work.SetLimit(maxConsumerRequests)
	u.ctx, u.cancel = context.WithCancel(context.Background())
	prefix := subjects.LocalSubject(l.Config.Node, subjects.Consumers) + "."
	_, err := l.API.Conn.Subscribe(prefix+">", func(m *nats.Msg) {
		verb := strings.TrimPrefix(m.Subject, prefix)
		if !u.work.TryGo(func() error { u.handle(m, verb); return nil }) {
			u.respondError(m, verb, 503, "too many consumer requests at once: try again")
		}
	})
	return u, err
}

// close cancels the requests in progress and waits for their handlers.
func (u *userConsumers) close() {
	u.cancel()
	_ = u.work.Wait() // its functions return no errors
}

// handle handles one request. verb is the part of the subject after subjects.Consumers:
// subjects.ConsumerCreate or subjects.ConsumerDelete, and the names.
func (u *userConsumers) handle(m *nats.Msg, verb string) {
	defer crash.Contain(u.local.Log, crash.NATS, func(err error) { u.respondError(m, verb, 500, err.Error()) })
	var reply *nats.Msg
	var err error
	if target, create := strings.CutPrefix(verb, subjects.ConsumerCreate); create {
		reply, err = u.create(target, m)
	} else {
		reply, err = u.remove(strings.TrimPrefix(verb, subjects.ConsumerDelete))
	}
	if err != nil {
		u.respondError(m, verb, 403, err.Error())
		return
	}
	u.respond(m, reply.Data)
}

// respondError replies with an error in JetStream's format, so that its clients
// can show it.
func (u *userConsumers) respondError(m *nats.Msg, verb string, code int, reason string) {
	kind := "create"
	if strings.HasPrefix(verb, subjects.ConsumerDelete) {
		kind = "delete"
	}
	// Marshaling numbers and strings cannot fail.
	text, _ := json.Marshal(map[string]any{
		"type": "io.nats.jetstream.api.v1.consumer_" + kind + "_response", "error": embedded.APIError{Code: code, Description: reason},
	})
	u.respond(m, text)
}

// respond replies to m. A client without a reply times out.
func (u *userConsumers) respond(m *nats.Msg, reply []byte) {
	if err := m.Respond(reply); err != nil {
		u.local.Log.Debug("consumer reply not sent", "err", err)
	}
}

// create creates a consumer for a client and returns JetStream's reply. target is the
// end of the request's subject, "<stream>.<name>[.<filter>]" or "<stream>"; m is the
// client's request, whose configuration is restricted by restrictConsumer. The error
// says why the request is refused: a setting that clients must not use, or too many
// consumers of the stream. JetStream itself refuses a body that names another stream.
func (u *userConsumers) create(target string, m *nats.Msg) (*nats.Msg, error) {
	var request struct {
		Stream string                     `json:"stream_name"`
		Config map[string]json.RawMessage `json:"config"`
		Action string                     `json:"action,omitempty"`
	}
	if err := json.Unmarshal(m.Data, &request); err != nil {
		return nil, fmt.Errorf("malformed consumer configuration: %w", err)
	}
	if request.Config == nil {
		request.Config = map[string]json.RawMessage{}
	}
	if err := restrictConsumer(request.Config, func(subject string) bool {
		return u.local.Config.OwnsInbox(clientInfo(m.Header).User, subject)
	}); err != nil {
		return nil, err
	}
	stream, _, _ := strings.Cut(target, ".")
	if err := u.checkLimit(stream); err != nil {
		return nil, err
	}
	restricted, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	reply, err := u.request(subjects.APIConsumer+subjects.ConsumerCreate+target, restricted)
	if err != nil {
		return nil, err
	}
	u.awaitInterest(reply.Data) // so that the client's first pull does not fail
	return reply, nil
}

// awaitInterest blocks until a consumer that was just created can be asked for
// messages from this node, or consumerTimeout has passed. reply is JetStream's reply
// to the creation. It may arrive before the consumer's subscription is known here,
// because members propagate subscriptions on another connection than replies, and
// the client's first pull would get "no responders". The request that awaitInterest
// sends is malformed on purpose: it is answered, but takes no message. A consumer that
// delivers to a subject is not pulled from, so awaitInterest returns at once.
func (u *userConsumers) awaitInterest(reply []byte) {
	var info struct {
		Stream string `json:"stream_name"`
		Name   string `json:"name"`
		Config struct {
			Deliver string `json:"deliver_subject"`
		} `json:"config"`
	}
	created := json.Unmarshal(reply, &info) == nil && info.Name != ""
	isPush := info.Config.Deliver != ""
	if !created || isPush {
		return
	}
	for deadline := time.Now().Add(consumerTimeout); time.Now().Before(deadline); {
		_, err := u.request(subjects.APIConsumer+"MSG.NEXT."+info.Stream+"."+info.Name, []byte("{"))
		if !errors.Is(err, nats.ErrNoResponders) || backoff.Sleep(u.ctx, consumerPollInterval) != nil {
			return
		}
	}
}

// restrictConsumer changes the configuration of a client's consumer, so that the
// consumer can do no harm: it is kept in memory without replicas, needs no
// acknowledgements, and expires after at most maxConsumerIdle without use. It returns
// an error if the client has set a key that is not in allowedConsumerKeys, or a subject
// to deliver to for which ownsInbox, which reports whether it is an inbox of the client's, is false. Such a key with its default is removed: the nats
// CLI sends them all.
func restrictConsumer(config map[string]json.RawMessage, ownsInbox func(subject string) bool) error {
	for key, value := range config {
		if slices.Contains(allowedConsumerKeys, key) {
			continue
		}
		if slices.Contains(unsetValues, string(value)) {
			delete(config, key)
		} else {
			return fmt.Errorf("consumers of the yard's streams are read-only here: %q cannot be set", key)
		}
	}
	if raw, pushed := config["deliver_subject"]; pushed {
		var subject string
		if err := json.Unmarshal(raw, &subject); err != nil || subject != "" && !ownsInbox(subject) {
			return fmt.Errorf("consumers of the yard's streams can only deliver to an inbox of their user, and %s is not one", raw)
		}
	}
	var maxIdle time.Duration
	if raw, given := config["inactive_threshold"]; given {
		if err := json.Unmarshal(raw, &maxIdle); err != nil {
			return fmt.Errorf("inactive_threshold: %w", err)
		}
	}
	if maxIdle <= 0 || maxIdle > maxConsumerIdle {
		maxIdle = maxConsumerIdle
	}
	metadata := map[string]string{}
	if raw, given := config["metadata"]; given {
		if err := json.Unmarshal(raw, &metadata); err != nil {
			return fmt.Errorf("metadata: %w", err)
		}
	}
	if metadata == nil { // the client sent null
		metadata = map[string]string{}
	}
	metadata[metaUserConsumer] = "true"

	for key, value := range map[string]any{
		"inactive_threshold": maxIdle, "metadata": metadata, "mem_storage": true, "num_replicas": 1, "ack_policy": "none",
	} {
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		config[key] = text
	}
	return nil
}

// checkLimit returns an error if the stream has reached its limit of consumers.
func (u *userConsumers) checkLimit(stream string) error {
	ctx, cancel := context.WithTimeout(u.ctx, consumerTimeout)
	defer cancel()
	info, err := streams.Info(ctx, u.local.JS, stream)
	if err != nil {
		return err
	}
	if info.State.Consumers >= maxUserConsumers {
		return fmt.Errorf("stream %s has %d consumers, which is the limit; idle ones are removed after %s", stream, info.State.Consumers, duration.Format(maxConsumerIdle))
	}
	return nil
}

// remove deletes a consumer if it is a user's, and returns JetStream's reply. target is
// "<stream>.<name>".
func (u *userConsumers) remove(target string) (*nats.Msg, error) {
	info, err := u.request(subjects.APIConsumer+"INFO."+target, nil)
	if err != nil {
		return nil, err
	}
	var consumer struct {
		embedded.APIReply
		Config struct {
			Metadata map[string]string `json:"metadata"`
		} `json:"config"`
	}
	if err := json.Unmarshal(info.Data, &consumer); err != nil {
		return nil, fmt.Errorf("consumer %s: %w", target, err)
	}
	if consumer.Error == nil && consumer.Config.Metadata[metaUserConsumer] == "" {
		return nil, fmt.Errorf("consumer %s belongs to the yard and cannot be deleted", target)
	}
	return u.request(subjects.APIConsumer+subjects.ConsumerDelete+target, nil) // JetStream answers if there is no such consumer
}

// request sends a request to the JetStream API and returns the reply.
func (u *userConsumers) request(subject string, body []byte) (*nats.Msg, error) {
	return u.local.API.Request(u.ctx, &nats.Msg{Subject: subject, Data: body}, consumerTimeout)
}
