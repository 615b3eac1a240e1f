package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"

	"yardmaster/job"
)

// Role is what a user of the yard may do.
type Role string

// The roles, from the least to the most. Nodes themselves are none of them.
const (
	Producer Role = "producer" // makes jobs and hears how they end
	Worker   Role = "worker"   // marks own dispatches, by the runtime contract
	Observer Role = "observer" // looks, and changes nothing
	Operator Role = "operator" // everything but what only nodes may do
)

// Roles are all of them.
var Roles = []Role{Producer, Worker, Observer, Operator}

// User is somebody who may connect, and as what.
type User struct {
	Name     string // 1 to 64 letters, digits, '-' and '_'
	Role     Role
	Password string   // as it is, or its bcrypt hash; this or NKey
	NKey     string   // the public key of a user's nkey, "U…"
	Queues   []string // of a producer: the only queues it may fill; none: all
}

// anonymous is who connects without a name, where that is allowed.
const anonymous = "anonymous"

var userName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate says what is wrong with a user.
func (u *User) Validate() error {
	switch {
	case !userName.MatchString(u.Name):
		return fmt.Errorf("name is %q; must be 1 to 64 letters, digits, '-' and '_'", u.Name)
	case u.Name == userInternal || u.Name == anonymous:
		return fmt.Errorf("name is %q, which the yard uses itself; choose another", u.Name)
	case !slices.Contains(Roles, u.Role):
		return fmt.Errorf("user %s has the role %q; must be producer, worker, observer or operator", u.Name, u.Role)
	case (u.Password == "") == (u.NKey == ""):
		return fmt.Errorf("user %s must have either a password or an nkey", u.Name)
	case u.NKey != "" && !nkeys.IsValidPublicUserKey(u.NKey):
		return fmt.Errorf("user %s: nkey is no user's public key, which begins with U; 'nk -gen user -pubout' makes one", u.Name)
	case strings.ContainsFunc(u.Password, func(r rune) bool { return r < ' ' || r > '~' }) || len(u.Password) > 256:
		return fmt.Errorf("user %s: password must be 1 to 256 visible ASCII characters, or a bcrypt hash of one", u.Name)
	}
	if strings.HasPrefix(u.Password, "$2") {
		if _, err := bcrypt.Cost([]byte(u.Password)); err != nil {
			return fmt.Errorf("user %s: password looks like a bcrypt hash and is none: %w", u.Name, err)
		}
	}
	if len(u.Queues) > 0 && u.Role != Producer {
		return fmt.Errorf("user %s: only a producer is held to queues, and the role is %s", u.Name, u.Role)
	}
	for _, queue := range u.Queues {
		if err := job.ValidQueue(queue); err != nil {
			return fmt.Errorf("user %s: %w", u.Name, err)
		}
	}
	return nil
}

// ValidateUsers says what is wrong with all of them together. open is the role
// of who connects without a name; "": nobody may.
func ValidateUsers(users []User, open Role) error {
	seen := map[string]bool{}
	for i := range users {
		u := &users[i]
		if err := u.Validate(); err != nil {
			return err
		}
		if seen[u.Name] || u.NKey != "" && seen[u.NKey] {
			return fmt.Errorf("user %s, or its nkey, is there twice", u.Name)
		}
		seen[u.Name], seen[u.NKey] = true, u.NKey != ""
	}
	if open != "" && !slices.Contains(Roles, open) {
		return fmt.Errorf("anonymous has the role %q; must be producer, worker, observer, operator, or empty for nobody", open)
	}
	if open != "" && len(users) == 0 && open != Operator {
		return errors.New("anonymous needs users beside it: without any, whoever connects is the operator")
	}
	return nil
}

// May tells whether a role may ask a subject, one without wildcards.
func (r Role) May(subject string) bool {
	return slices.ContainsFunc(r.publishes(nil), func(pattern string) bool { return matches(pattern, subject) })
}

// matches compares a subject with a pattern.
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

// What the roles may ask, as the public subjects say it.
var (
	makes = []string{SubjectJobs + ".*", SubjectEnqueue + ".*", SubjectCall + ".*"}
	marks = subjects(SubjectExec, "QueueDispatch", "MarkNotified", "MarkDelivered", "MarkFailed")
	hears = append(subjects(subjectNode+".*", "health", "readiness"), SubjectStatus, SubjectSnapshot, SubjectAPI+".openapi")
	looks = slices.Concat(hears, subjects(SubjectAPI,
		"job.show", "job.explain", "job.wait", "job.logs", "job.list", "cron.list", "cron.show", "ledger.hash",
		"queue.list", "queue.show", "queue.explain", "dlq.list", "dlq.show", "dlq.stats", "cluster.members", "cluster.scrub",
	), subjects(subjectNode+".*", "snapshot", "status"), []string{"$SRV.>"}, readsStreams)
	// Reading what JetStream keeps. Consumers are made by nodes: see consumers.
	readsStreams = append(subjects("$JS.API",
		"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "STREAM.MSG.GET.*", "DIRECT.GET.>",
		"CONSUMER.NAMES.*", "CONSUMER.LIST.*", "CONSUMER.INFO.*.*", "CONSUMER.MSG.NEXT.*.*",
		"CONSUMER.CREATE.>", "CONSUMER.DELETE.*.*",
	), "$JS.FC.>")
)

// unheard is what libraries say and nobody listens to: users' consumers want no
// acknowledgements.
var unheard = []string{"$JS.ACK.>"}

func subjects(prefix string, ends ...string) []string {
	list := make([]string, len(ends))
	for i, end := range ends {
		list[i] = prefix + "." + end
	}
	return list
}

// publishes are the public subjects that a role may publish to. A producer that
// is held to queues may not ask by what names a job only within the question.
func (r Role) publishes(queues []string) []string {
	switch r {
	case Producer:
		if len(queues) > 0 {
			var own []string
			for _, queue := range queues {
				for _, all := range makes {
					own = append(own, strings.TrimSuffix(all, "*")+queue)
				}
			}
			return own
		}
		return append(slices.Clone(makes), subjects(SubjectAPI, "job.bulk", "job.show", "job.wait", "openapi")...)
	case Worker:
		return slices.Concat(marks, hears, subjects(SubjectAPI, "job.show", "job.wait"))
	case Observer:
		return slices.Concat(looks, unheard)
	}
	return slices.Concat(makes, looks, unheard, subjects(subjectNode+".*", nodeVerbs...),
		[]string{SubjectExec, SubjectExec + ".*", SubjectAPI + ".>"})
}

// subscribes are the subjects that a role may listen to beside its own inbox.
func (r Role) subscribes() []string {
	if r == Producer {
		return nil
	}
	return []string{SubjectLive + ".>", SubjectAdvisory + ".>"}
}

// inboxes is where a user hears answers, and nobody else does. A key's owner
// knows its key, and not the name that it has here; who has no name takes what
// its library does without being told.
func (u *User) inboxes() []string {
	switch {
	case u.Name == anonymous:
		return []string{"_INBOX.>"}
	case u.NKey != "":
		return []string{InboxOf(u.NKey) + ".>", InboxOf(u.Name) + ".>"}
	}
	return []string{InboxOf(u.Name) + ".>"}
}

// InboxOf is the prefix of the subjects on which a user, by its name or nkey,
// hears answers.
func InboxOf(user string) string { return "_INBOX_" + user }
