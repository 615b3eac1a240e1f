package cluster

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestUsers_Validate(t *testing.T) {
	const key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
	for want, users := range map[string][]User{
		`name is "a b"`:               {{Name: "a b", Role: Producer, Password: "x"}},
		"which is reserved":           {{Name: "internal", Role: Operator, Password: "x"}},
		`has the role "boss"`:         {{Name: "a", Role: "boss", Password: "x"}},
		"either a password or an":     {{Name: "a", Role: Worker}},
		"user b must have either":     {{Name: "b", Role: Worker, Password: "x", NKey: key}},
		"not the public key of":       {{Name: "a", Role: Worker, NKey: "SU" + key[2:]}},
		"visible ASCII":               {{Name: "a", Role: Worker, Password: "a\nb"}},
		"looks like a bcrypt hash":    {{Name: "a", Role: Worker, Password: "$2a$nonsense"}},
		"only be set for a producer":  {{Name: "a", Role: Worker, Password: "x", Queues: []string{"mail"}}},
		"queue name":                  {{Name: "a", Role: Producer, Password: "x", Queues: []string{"img-*"}}},
		"user a, or its nkey, is def": {{Name: "a", Role: Worker, Password: "x"}, {Name: "a", Role: Worker, Password: "y"}},
		"user c, or its nkey, is def": {{Name: "b", Role: Worker, NKey: key}, {Name: "c", Role: Worker, NKey: key}},
	} {
		if err := ValidateUsers(users, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want one that contains %q", users, err, want)
		}
	}
	good := []User{{Name: "a", Role: Producer, Password: "x", Queues: []string{"mail", "img-1"}}, {Name: "b", Role: Observer, NKey: key}}
	if err := ValidateUsers(good, Observer); err != nil {
		t.Error(err)
	}
	if err := ValidateUsers(nil, Observer); err == nil {
		t.Error("a role for anonymous clients is accepted without users")
	}
	if err := ValidateUsers(good, "boss"); err == nil {
		t.Error("an unknown role is accepted")
	}
}

func TestRole_May(t *testing.T) {
	for subject, roles := range map[string][]Role{
		"yard.enqueue.mail":         {Producer, Operator},
		"yard.api.v1.job.show":      {Producer, Worker, Observer, Operator},
		"yard.api.v1.job.cancel":    {Operator},
		"yard.exec":                 {Operator},
		"yard.exec.MarkFailed":      {Worker, Operator},
		"yard.exec.RequestReplay":   {Operator},
		"yard.snapshot":             {Worker, Observer, Operator},
		"yard.node.n1.stepdown":     {Operator},
		"yard.node.n1.drain":        {Operator},
		"yard.node.n1.resume":       {Operator},
		"yard.history":              nil,
		"yard.node.n1.assign":       nil,
		"yard.enqueue":              nil,
		"yard.enqueue.mail.further": nil,
	} {
		for _, role := range Roles {
			if role.MayRequest(subject) != slices.Contains(roles, role) {
				t.Errorf("%s and %s: %v", role, subject, role.MayRequest(subject))
			}
		}
	}
}

// TestRestrictConsumer checks that a user's consumer is restricted to an inbox, to
// memory and to a short idle time, whatever the request want.
func TestRestrictConsumer(t *testing.T) {
	read := func(config string) (map[string]json.RawMessage, error) {
		var asked map[string]json.RawMessage
		if err := json.Unmarshal([]byte(config), &asked); err != nil {
			t.Fatal(err)
		}
		return asked, restrictConsumer(asked)
	}
	for config, want := range map[string]string{
		`{"deliver_subject":"yard.history"}`:         "is not one",
		`{"deliver_subject":"$KV.YARD_QUEUES.mail"}`: "is not one",
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
		`{"inactive_threshold":99000000000000}`,
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
			!strings.Contains(string(made["metadata"]), metaUserConsumer) {
			t.Errorf("%s becomes %s", config, made)
		}
	}
	kept, err := read(`{"inactive_threshold":1000000000}`)
	if err != nil || string(kept["inactive_threshold"]) != "1000000000" {
		t.Errorf("%s, %v", kept, err)
	}
}
