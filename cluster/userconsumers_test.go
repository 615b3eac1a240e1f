package cluster

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestRestrictConsumer checks that a user's consumer is restricted to an inbox, to
// memory and to a short idle time, whatever the request want.
func TestRestrictConsumer(t *testing.T) {
	read := func(config string) (map[string]json.RawMessage, error) {
		var asked map[string]json.RawMessage
		if err := json.Unmarshal([]byte(config), &asked); err != nil {
			t.Fatal(err)
		}
		return asked, restrictConsumer(asked, func(subject string) bool { return strings.HasPrefix(subject, "_INBOX_eye.") })
	}
	for config, want := range map[string]string{
		`{"deliver_subject":"yard.history"}`:         "is not one",
		`{"deliver_subject":"$KV.YARD_QUEUES.mail"}`: "is not one",
		`{"deliver_subject":"_INBOX_ann.x"}`:         "is not one",
		`{"deliver_subject":5}`:                      "is not one",
		`{"direct":true}`:                            `"direct" cannot be set`,
		`{"deliver_group":"g"}`:                      `"deliver_group" cannot be set`,
		`{"inactive_threshold":"long"}`:              "inactive_threshold",
		`{"metadata":7}`:                             "metadata",
	} {
		if _, err := read(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want one that contains %q", config, err, want)
		}
	}
	for _, config := range []string{
		`{}`, `{"deliver_subject":"_INBOX_eye.x","ack_policy":"explicit","mem_storage":false,"num_replicas":3,"metadata":{"a":"b"}}`,
		`{"inactive_threshold":99000000000000}`, `{"pause_until":"0001-01-01T00:00:00Z","direct":false,"priority_groups":null}`,
	} {
		made, err := read(config)
		if err != nil {
			t.Fatalf("%s: %v", config, err)
		}
		var idle time.Duration
		if err := json.Unmarshal(made["inactive_threshold"], &idle); err != nil || idle != maxConsumerIdle {
			t.Errorf("%s: idle for %s, %v", config, idle, err)
		}
		if string(made["mem_storage"]) != "true" || string(made["num_replicas"]) != "1" || string(made["ack_policy"]) != `"none"` ||
			!strings.Contains(string(made["metadata"]), metaUserConsumer) || made["pause_until"] != nil {
			t.Errorf("%s becomes %s", config, made)
		}
	}
	kept, err := read(`{"inactive_threshold":1000000000}`)
	if err != nil || string(kept["inactive_threshold"]) != "1000000000" {
		t.Errorf("%s, %v", kept, err)
	}
}
