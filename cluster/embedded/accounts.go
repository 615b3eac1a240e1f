package embedded

import (
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Users with a role live in a separate account, CLIENTS. The server checks which
// subjects a client publishes to, but not which reply subject it names. Within the
// yard's own account, a request whose reply subject is yard.history, or the API
// subject that purges a stream, would make a node or JetStream publish there. A
// reply that crosses accounts can only reach the client that sent the request.

// serviceImport is a service of the yard's account that the CLIENTS account imports.
type serviceImport struct {
	subject string
	as      string // subject in the CLIENTS account; "": the same
	multi   bool   // a request may get more than one reply
}

// serviceImports lists all services that users with a role may reach. Whether one
// user may is decided by its permissions.
func serviceImports() []serviceImport {
	list := []serviceImport{
		{subject: subjects.Jobs + ".*"}, {subject: api.SubjectEnqueue + ".*"}, {subject: api.SubjectCall + ".*"},
		{subject: api.SubjectExec}, {subject: api.SubjectExec + ".*"}, {subject: api.SubjectSnapshot}, {subject: api.SubjectStatus},
		{subject: api.SubjectAPI + ".>"}, {subject: "$SRV.>", multi: true},
	}
	for _, verb := range subjects.NodeVerbs {
		list = append(list, serviceImport{subject: subjects.NodeSubject("*", verb)})
	}
	for _, subject := range streamReadSubjects {
		read := serviceImport{subject: subject, multi: strings.HasSuffix(subject, ".>") || strings.Contains(subject, ".NEXT.")}
		if verb, ofConsumers := strings.CutPrefix(subject, subjects.APIConsumer); ofConsumers && isConsumerVerb(verb) {
			read.subject, read.as, read.multi = subjects.Consumers+"."+verb, subject, false
		}
		list = append(list, read)
	}
	return list
}

// isConsumerVerb reports whether nodes handle this verb under $JS.API.CONSUMER.
func isConsumerVerb(verb string) bool {
	return strings.HasPrefix(verb, subjects.ConsumerCreate) || strings.HasPrefix(verb, subjects.ConsumerDelete)
}

// eventSubjects lists the subjects that users with a role may subscribe to.
func eventSubjects() []string { return []string{subjects.Live + ".>", subjects.Advisory + ".>"} }

// writeExports writes the exports of the yard's account.
func writeExports(line func(string, ...any), cfg *Config) {
	line("    exports: [")
	for _, s := range serviceImports() {
		kind := "Singleton"
		if s.multi {
			kind = "Stream"
		}
		line("      { service: %s, response_type: %s, accounts: [%s] }", quote(s.subject), kind, accountClients)
	}
	for _, subject := range append(eventSubjects(), userInboxes(cfg)...) {
		line("      { stream: %s, accounts: [%s] }", quote(subject), accountClients)
	}
	line("    ]")
}

// writeClientAccount writes the CLIENTS account: its imports and its users, each
// with exactly the permissions of its role. Messages of a user's consumer reach
// the user's inbox from the yard's account.
func writeClientAccount(line func(string, ...any), cfg *Config) {
	line("  %s {", accountClients)
	line("    imports: [")
	for _, s := range serviceImports() {
		as := ""
		if s.as != "" {
			as = ", to: " + quote(s.as)
		}
		line("      { service: { account: %s, subject: %s }%s }", AccountYard, quote(s.subject), as)
	}
	for _, subject := range append(eventSubjects(), userInboxes(cfg)...) {
		line("      { stream: { account: %s, subject: %s } }", AccountYard, quote(subject))
	}
	line("    ]")
	line("    users: [")
	for _, u := range loginUsers(cfg) {
		login := "nkey: " + quote(u.NKey)
		if u.NKey == "" {
			login = "user: " + quote(u.Name) + ", password: " + quote(u.Password)
		}
		line("      { %s, permissions {", login)
		line("        publish { allow: [%s] }", quoteAll(u.Role.publishSubjects(u.Queues)))
		line("        subscribe { allow: [%s] }", quoteAll(append(u.Role.subscribeSubjects(), u.inboxSubjects()...)))
		line("      } }")
	}
	line("    ]")
	line("  }")
}

// loginUsers returns all users, including the anonymous one if it is enabled.
func loginUsers(cfg *Config) []User {
	users := cfg.Users
	if cfg.Anonymous != "" {
		users = append(users[:len(users):len(users)], User{Name: anonymous, Role: cfg.Anonymous})
	}
	return users
}

// userInboxes returns the inbox subjects of all users that may have consumers.
func userInboxes(cfg *Config) (all []string) {
	for _, u := range loginUsers(cfg) {
		if u.Role == Observer || u.Role == Operator {
			all = append(all, u.inboxSubjects()...)
		}
	}
	return all
}
