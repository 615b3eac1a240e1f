package cluster

import "strings"

// Users who have a role live in an account of their own. The server checks what
// a client publishes to, but not where it wants the answer; in the yard's own
// account, a question whose answer is to go to yard.history, or to the request
// that purges a stream, would have a node or JetStream itself write there. Across
// accounts, an answer ends where its question began.

// imported are the services of the yard's account that others reach, each under
// the subject that it has for them.
type imported struct {
	subject string
	as      string // "": the same
	many    bool   // more than one answer comes
}

func services() []imported {
	list := []imported{
		{subject: SubjectJobs + ".*"}, {subject: SubjectEnqueue + ".*"}, {subject: SubjectCall + ".*"},
		{subject: SubjectExec}, {subject: SubjectExec + ".*"}, {subject: SubjectSnapshot}, {subject: SubjectStatus},
		{subject: SubjectAPI + ".>"}, {subject: "$SRV.>", many: true},
	}
	for _, verb := range nodeVerbs {
		list = append(list, imported{subject: nodeSubject("*", verb)})
	}
	for _, subject := range readsStreams {
		read := imported{subject: subject, many: strings.HasSuffix(subject, ".>") || strings.Contains(subject, ".NEXT.")}
		if verb, ofConsumers := strings.CutPrefix(subject, apiConsumer); ofConsumers && asksConsumers(verb) {
			read.subject, read.as, read.many = SubjectConsumers+"."+verb, subject, false
		}
		list = append(list, read)
	}
	return list
}

// heard are the subjects that others may listen to.
func heard() []string { return []string{SubjectLive + ".>", SubjectAdvisory + ".>"} }

func writeExports(line func(string, ...any), cfg *Config) {
	line("    exports: [")
	for _, s := range services() {
		kind := "Singleton"
		if s.many {
			kind = "Stream"
		}
		line("      { service: %s, response_type: %s, accounts: [%s] }", quote(s.subject), kind, clients)
	}
	for _, subject := range append(heard(), inboxes(cfg)...) {
		line("      { stream: %s, accounts: [%s] }", quote(subject), clients)
	}
	line("    ]")
}

// writeClients gives each user what its role may do, and nothing else. What a
// consumer delivers comes to a user's inbox from the yard's account.
func writeClients(line func(string, ...any), cfg *Config) {
	line("  %s {", clients)
	line("    imports: [")
	for _, s := range services() {
		as := ""
		if s.as != "" {
			as = ", to: " + quote(s.as)
		}
		line("      { service: { account: %s, subject: %s }%s }", account, quote(s.subject), as)
	}
	for _, subject := range append(heard(), inboxes(cfg)...) {
		line("      { stream: { account: %s, subject: %s } }", account, quote(subject))
	}
	line("    ]")
	line("    users: [")
	for _, u := range connecting(cfg) {
		login := "nkey: " + quote(u.NKey)
		if u.NKey == "" {
			login = "user: " + quote(u.Name) + ", password: " + quote(u.Password)
		}
		line("      { %s, permissions {", login)
		line("        publish { allow: [%s] }", quoteAll(u.Role.publishes(u.Queues)))
		line("        subscribe { allow: [%s] }", quoteAll(append(u.Role.subscribes(), u.inboxes()...)))
		line("      } }")
	}
	line("    ]")
	line("  }")
}

// connecting are all users, and who has no name.
func connecting(cfg *Config) []User {
	users := cfg.Users
	if cfg.Anonymous != "" {
		users = append(users[:len(users):len(users)], User{Name: anonymous, Role: cfg.Anonymous})
	}
	return users
}

// inboxes are those of all users that may have consumers.
func inboxes(cfg *Config) (all []string) {
	for _, u := range connecting(cfg) {
		if u.Role == Observer || u.Role == Operator {
			all = append(all, u.inboxes()...)
		}
	}
	return all
}
