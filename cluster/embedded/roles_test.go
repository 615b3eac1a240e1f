package embedded

import (
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
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
		"for a producer or worker":    {{Name: "a", Role: Viewer, Password: "x", Queues: []string{"mail"}}},
		"queue name":                  {{Name: "a", Role: Producer, Password: "x", Queues: []string{"img-*"}}},
		"user a, or its nkey, is def": {{Name: "a", Role: Worker, Password: "x"}, {Name: "a", Role: Worker, Password: "y"}},
		"user c, or its nkey, is def": {{Name: "b", Role: Worker, NKey: key}, {Name: "c", Role: Worker, NKey: key}},
	} {
		if err := ValidateUsers(users, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want one that contains %q", users, err, want)
		}
	}
	good := []User{{Name: "a", Role: Producer, Password: "x", Queues: []string{"mail", "img-1"}}, {Name: "w", Role: Worker, Password: "x", Queues: []string{"mail"}}, {Name: "b", Role: Observer, NKey: key}}
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
		"yard.enqueue.mail":           {Producer, Operator, Admin},
		"yard.api.v1.job.show":        {Producer, Worker, Viewer, Observer, Operator, Admin},
		"yard.api.v1.job.cancel":      {Operator, Admin},
		"yard.api.v1.operation.start": {Operator, Admin},
		"yard.api.v1.cluster.members": {Viewer, Observer, Operator, Admin},
		"yard.api.v1.cluster.rm":      {Admin},
		"yard.api.v1.cluster.replace": {Admin},
		"yard.api.v1.backup.begin":    {Admin},
		"yard.api.v1.restore.begin":   {Admin},
		"yard.exec":                   {Admin},
		"yard.exec.AcquireAuthority":  {Admin},
		"yard.exec.MarkFailed":        {Worker, Operator, Admin},
		"yard.exec.RequestReplay":     {Operator, Admin},
		"yard.snapshot":               {Worker, Viewer, Observer, Operator, Admin},
		"yard.node.n1.stepdown":       {Operator, Admin},
		"yard.node.n1.drain":          {Operator, Admin},
		"yard.node.n1.resume":         {Operator, Admin},
		"yard.history":                nil,
		"yard.node.n1.assign":         nil,
		"yard.enqueue":                nil,
		"yard.enqueue.mail.further":   nil,
	} {
		for _, role := range Roles {
			if mayRequest(role, subject) != slices.Contains(roles, role) {
				t.Errorf("%s and %s: %v", role, subject, mayRequest(role, subject))
			}
		}
	}
}

// A viewer may read everything and change nothing: it has the operations whose HTTP
// method is GET, and the preview, whose request has a body, and no others.
func TestViewer_MayRequestWhatReads(t *testing.T) {
	for _, endpoint := range api.Endpoints {
		if endpoint.Subject == "" || endpoint.Pattern == "" {
			continue
		}
		reads := strings.HasPrefix(endpoint.Pattern, "GET ") || endpoint.Name == "operation-preview"
		if may := mayRequest(Viewer, strings.ReplaceAll(endpoint.Subject, "*", "x")); may != reads {
			t.Errorf("viewer may request %s, %s: %v", endpoint.Subject, endpoint.Pattern, may)
		}
	}
}

// mayRequest reports whether the role may publish to subject, which has no
// wildcards.
func mayRequest(r Role, subject string) bool {
	return slices.ContainsFunc((&User{Role: r}).publishSubjects(), func(pattern string) bool { return matches(pattern, subject) })
}

// matches reports whether subject matches a pattern with NATS wildcards.
func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range p {
		switch {
		case token == ">":
			return len(s) > i
		case i >= len(s) || token != "*" && token != s[i]:
			return false
		}
	}
	return len(p) == len(s)
}
