package cluster

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// refusedReplies maps the verbs of requests to the JetStream API that users may not make
// to the types of JetStream's replies.
var refusedReplies = map[string]string{
	"STREAM.CREATE": "stream_create", "STREAM.UPDATE": "stream_update", "STREAM.DELETE": "stream_delete", "STREAM.PURGE": "stream_purge",
	"STREAM.RESTORE": "stream_restore", "STREAM.SNAPSHOT": "stream_snapshot", "STREAM.MSG.DELETE": "stream_msg_delete",
	"STREAM.PEER.REMOVE": "stream_remove_peer", "STREAM.LEADER.STEPDOWN": "stream_leader_stepdown",
	"CONSUMER.DURABLE.CREATE": "consumer_create", "CONSUMER.PAUSE": "consumer_pause", "CONSUMER.LEADER.STEPDOWN": "consumer_leader_stepdown",
}

// refuseChanges answers requests of users that would change streams, with errors in
// JetStream's format. Any node may answer.
func refuseChanges(l *embedded.Server) error {
	prefix := subjects.Refused + "."
	_, err := l.API.Conn.QueueSubscribe(prefix+">", "nodes", func(m *nats.Msg) {
		defer crash.Contain(l.Log, crash.NATS, nil)
		if err := m.Respond(refusal(strings.TrimPrefix(m.Subject, prefix))); err != nil {
			l.Log.Debug("refusal not sent", "err", err)
		}
	})
	return err
}

// refusal returns the reply to a request. name is the end of its subject.
func refusal(name string) []byte {
	verb, reply := name, "stream"
	for known, kind := range refusedReplies {
		if strings.HasPrefix(name, known+".") {
			verb, reply = known, kind
		}
	}
	// Marshaling numbers and strings cannot fail.
	text, _ := json.Marshal(map[string]any{
		"type": "io.nats.jetstream.api.v1." + reply + "_response",
		"error": embedded.APIError{Code: 403, Description: fmt.Sprintf(
			"%s is not permitted: users may read streams, and neither create, change nor remove them", verb)},
	})
	return text
}
