package embedded

import (
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

// Each user with a role has an account of its own, such as CLIENTS_shop. The server
// checks which subjects a client publishes to, but not which reply subject it names.
// Within the yard's own account, a request whose reply subject is yard.history, or the
// API subject that purges a stream, would make a node or JetStream publish there. Within
// one account of all users, a reply subject of _INBOX_ada.x would put a node's answer
// into the inbox of ada. A reply that crosses accounts ends in the account of the
// client that sent the request.

// serviceImport is a service of the yard's account that the accounts of users import.
type serviceImport struct {
	subject string
	as      string // subject in the accounts of users; "": the same
	multi   bool   // a request may get more than one reply
	share   bool   // requests carry the name of their user
}

// serviceImports lists all services that any user with a role may reach. The server
// decides by a user's permissions which of them that user may reach.
func serviceImports() []serviceImport {
	list := []serviceImport{
		{subject: subjects.Jobs + ".*"}, {subject: api.SubjectEnqueue + ".*", share: true}, {subject: api.SubjectCall + ".*", share: true},
		{subject: api.SubjectExec, share: true}, {subject: api.SubjectExec + ".*", share: true}, {subject: api.SubjectSnapshot}, {subject: api.SubjectStatus},
		{subject: api.SubjectAPI + ".>", share: true}, {subject: "$SRV.>", multi: true},
	}
	for _, verb := range subjects.NodeVerbs {
		list = append(list, serviceImport{subject: subjects.NodeSubject("*", verb), share: true})
	}
	for _, subject := range streamReadSubjects {
		verb, ofConsumers := strings.CutPrefix(subject, subjects.APIConsumer)
		if ofConsumers && isConsumerVerb(verb) { // the node answers it instead of JetStream
			list = append(list, serviceImport{subject: subjects.Consumers + "." + verb, as: subject, share: true})
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

// account returns the name of the user's account, such as CLIENTS_shop.
func (u *User) account() string { return accountClients + "_" + u.Name }

// writeExports writes the exports of the yard's account to the accounts of all users.
func writeExports(line func(string, ...any), cfg *Config) {
	users := loginUsers(cfg)
	accounts := make([]string, len(users))
	for i := range users {
		accounts[i] = users[i].account()
	}
	everybody := quoteAll(accounts)
	line("    exports: [")
	for _, s := range serviceImports() {
		kind := "Singleton"
		if s.multi {
			kind = "Stream"
		}
		line("      { service: %q, response_type: %s, accounts: [%s] }", s.subject, kind, everybody)
	}
	for _, subject := range eventSubjects {
		line("      { stream: %q, accounts: [%s] }", subject, everybody)
	}
	for i := range users {
		for _, subject := range users[i].consumerInboxes() {
			line("      { stream: %q, accounts: [%q] }", subject, accounts[i])
		}
	}
	line("    ]")
}

// writeClientAccounts writes the account of each user: its imports and the user, with
// exactly the permissions of its role.
func writeClientAccounts(line func(string, ...any), cfg *Config) {
	for _, u := range loginUsers(cfg) {
		line("  %s {", u.account())
		writeImports(line, &u)
		login := fmt.Sprintf("nkey: %q", u.NKey)
		if u.NKey == "" {
			login = fmt.Sprintf("user: %q, password: %q", u.Name, u.Password)
		}
		line("    users: [")
		line("      { %s, permissions {", login)
		line("        publish { allow: [%s] }", quoteAll(u.publishSubjects()))
		line("        subscribe { allow: [%s] }", quoteAll(u.subscribeSubjects()))
		line("      } }")
		line("    ]")
		line("  }")
	}
}

// writeImports writes the imports of the user's account. Messages of the user's
// consumers reach the user's inbox from the yard's account.
func writeImports(line func(string, ...any), u *User) {
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
	for _, subject := range slices.Concat(eventSubjects, u.consumerInboxes()) {
		line("      { stream: { account: %s, subject: %q } }", AccountYard, subject)
	}
	line("    ]")
}

// loginUsers returns all users, including the anonymous one if it is enabled.
func loginUsers(cfg *Config) []User {
	if cfg.Anonymous == "" {
		return cfg.Users
	}
	return append(slices.Clone(cfg.Users), User{Name: anonymous, Role: cfg.Anonymous})
}

// consumerInboxes returns the inboxes to which the user's consumers may deliver; none
// unless the role may have consumers.
func (u *User) consumerInboxes() []string {
	if !u.Role.readsStreams() {
		return nil
	}
	return u.inboxSubjects()
}
