package embedded

import (
	"fmt"
	"slices"
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
	share   bool   // requests carry the name of their user
}

// serviceImports lists all services that any user with a role may reach. The server
// decides by a user's permissions which of them that user may reach.
func serviceImports() []serviceImport {
	list := []serviceImport{
		{subject: subjects.Jobs + ".*"}, {subject: api.SubjectEnqueue + ".*"}, {subject: api.SubjectCall + ".*"},
		{subject: api.SubjectExec, share: true}, {subject: api.SubjectExec + ".*", share: true}, {subject: api.SubjectSnapshot}, {subject: api.SubjectStatus},
		{subject: api.SubjectAPI + ".>", share: true}, {subject: "$SRV.>", multi: true},
	}
	for _, verb := range subjects.NodeVerbs {
		list = append(list, serviceImport{subject: subjects.NodeSubject("*", verb), share: true})
	}
	for _, subject := range streamReadSubjects {
		verb, ofConsumers := strings.CutPrefix(subject, subjects.APIConsumer)
		if ofConsumers && isConsumerVerb(verb) { // the node answers it instead of JetStream
			list = append(list, serviceImport{subject: subjects.Consumers + "." + verb, as: subject})
			continue
		}
		manyReplies := strings.HasSuffix(subject, ".>") || strings.Contains(subject, ".NEXT.")
		list = append(list, serviceImport{subject: subject, multi: manyReplies})
	}
	for _, subject := range refusedSubjects {
		list = append(list, serviceImport{subject: subjects.Refused + strings.TrimPrefix(subject, "$JS.API"), as: subject})
	}
	return list
}

// isConsumerVerb reports whether nodes handle this verb under $JS.API.CONSUMER.
func isConsumerVerb(verb string) bool {
	return strings.HasPrefix(verb, subjects.ConsumerCreate) || strings.HasPrefix(verb, subjects.ConsumerDelete)
}

// writeExports writes the exports of the yard's account.
func writeExports(line func(string, ...any), cfg *Config) {
	line("    exports: [")
	for _, s := range serviceImports() {
		kind := "Singleton"
		if s.multi {
			kind = "Stream"
		}
		line("      { service: %q, response_type: %s, accounts: [%s] }", s.subject, kind, accountClients)
	}
	for _, subject := range exportedSubjects(cfg) {
		line("      { stream: %q, accounts: [%s] }", subject, accountClients)
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
			as = fmt.Sprintf(", to: %q", s.as)
		}
		if s.share {
			as += ", share: true"
		}
		line("      { service: { account: %s, subject: %q }%s }", AccountYard, s.subject, as)
	}
	for _, subject := range exportedSubjects(cfg) {
		line("      { stream: { account: %s, subject: %q } }", AccountYard, subject)
	}
	line("    ]")
	line("    users: [")
	for _, u := range loginUsers(cfg) {
		login := fmt.Sprintf("nkey: %q", u.NKey)
		if u.NKey == "" {
			login = fmt.Sprintf("user: %q, password: %q", u.Name, u.Password)
		}
		line("      { %s, permissions {", login)
		line("        publish { allow: [%s] }", quoteAll(u.publishSubjects()))
		line("        subscribe { allow: [%s] }", quoteAll(u.subscribeSubjects()))
		line("      } }")
	}
	line("    ]")
	line("  }")
}

// loginUsers returns all users, including the anonymous one if it is enabled.
func loginUsers(cfg *Config) []User {
	if cfg.Anonymous == "" {
		return cfg.Users
	}
	return append(slices.Clone(cfg.Users), User{Name: anonymous, Role: cfg.Anonymous})
}

// exportedSubjects lists the subjects whose messages the yard's account passes on to
// users with a role: events, and the inboxes of all users that may have consumers.
func exportedSubjects(cfg *Config) []string {
	exported := slices.Clone(eventSubjects)
	for _, u := range loginUsers(cfg) {
		if u.Role.readsStreams() {
			exported = append(exported, u.inboxSubjects()...)
		}
	}
	return exported
}
