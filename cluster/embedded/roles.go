package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"golang.org/x/crypto/bcrypt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Role is a set of permissions of a user.
type Role string

// The roles. Nodes have no role; their connections are unrestricted.
const (
	Producer Role = "producer" // enqueues jobs and gets their outcomes
	Worker   Role = "worker"   // marks its dispatches, by the runtime contract
	Viewer   Role = "viewer"   // reads everything and changes nothing
	Observer Role = "observer" // an older name of Viewer
	Operator Role = "operator" // reads everything, and changes jobs, queues, limits and the like
	Admin    Role = "admin"    // everything except what is reserved for nodes
)

// Roles lists all roles.
var Roles = []Role{Producer, Worker, Viewer, Observer, Operator, Admin}

// roleNames are the names of the roles, for errors.
const roleNames = "producer, worker, viewer, operator or admin"

// readsStreams reports whether the role may read streams with consumers of its own.
func (r Role) readsStreams() bool { return r != Producer && r != Worker }

// User is a user that may connect, with its role.
type User struct {
	Name     string // 1 to 64 letters, digits, '-' and '_'
	Role     Role
	Password string   // plain text or a bcrypt hash; exclusive with NKey
	NKey     string   // public key of a user nkey, "U…"
	Queues   []string // the only queues that a producer may use, and whose jobs a producer or worker may read; none: all
}

// anonymous is the name of the user for clients without a user name.
const anonymous = "anonymous"

// UserName returns the name of the user who logs in as login, which is a name or a
// public nkey; "" if it is no user's.
func (c *Config) UserName(login string) string {
	if u := c.User(login); u != nil {
		return u.Name
	}
	return ""
}

// User returns the user who logs in as login, as in [Config.UserName]; nil if it is no user's.
func (c *Config) User(login string) *User {
	for i := range c.Users {
		if u := &c.Users[i]; login != "" && (login == u.Name || login == u.NKey) {
			return u
		}
	}
	return nil
}

// QuotaName returns the name under which the new queues of the user are counted, "" for an
// admin, who may make any number of them.
func (u *User) QuotaName() string {
	if u.Role == Admin {
		return ""
	}
	return cmp.Or(u.Name, anonymous)
}

// UserName matches the names that users may have.
var UserName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// Validate returns an error if a field of u is invalid.
func (u *User) Validate() error {
	if err := u.validateRole(); err != nil {
		return err
	}
	switch {
	case (u.Password == "") == (u.NKey == ""):
		return fmt.Errorf("user %s must have either a password or an nkey", u.Name)
	case u.NKey != "" && !nkeys.IsValidPublicUserKey(u.NKey):
		return fmt.Errorf("user %s: nkey is not the public key of a user nkey, which begins with U; 'nk -gen user -pubout' makes one", u.Name)
	case strings.ContainsFunc(u.Password, func(r rune) bool { return r < ' ' || r > '~' }) || len(u.Password) > 256:
		return fmt.Errorf("user %s: password must be 1 to 256 visible ASCII characters, or a bcrypt hash of one", u.Name)
	}
	if strings.HasPrefix(u.Password, "$2") {
		if _, err := bcrypt.Cost([]byte(u.Password)); err != nil {
			return fmt.Errorf("user %s: password looks like a bcrypt hash but is not valid: %w", u.Name, err)
		}
	}
	return nil
}

// ValidateToken is like [User.Validate] for a user of HTTP, who has a token instead of a
// password or nkey.
func (u *User) ValidateToken(token string) error {
	if err := u.validateRole(); err != nil {
		return err
	}
	if len(token) < 1 || len(token) > 256 || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("user %s: token must be 1 to 256 visible ASCII characters without spaces", u.Name)
	}
	return nil
}

// validateRole returns an error if the user's name, role or queues are invalid.
func (u *User) validateRole() error {
	switch {
	case !UserName.MatchString(u.Name):
		return fmt.Errorf("name is %q; must be 1 to 64 letters, digits, '-' and '_'", u.Name)
	case u.Name == userInternal || u.Name == anonymous:
		return fmt.Errorf("name is %q, which is reserved; choose another", u.Name)
	case !slices.Contains(Roles, u.Role):
		return fmt.Errorf("user %s has the role %q; must be %s", u.Name, u.Role, roleNames)
	}
	if len(u.Queues) > 0 && u.Role != Producer && u.Role != Worker {
		return fmt.Errorf("user %s: queues can only be set for a producer or worker, and the role is %s", u.Name, u.Role)
	}
	for _, queue := range u.Queues {
		if err := job.ValidQueue(queue); err != nil {
			return fmt.Errorf("user %s: %w", u.Name, err)
		}
	}
	return nil
}

// ValidateUsers returns an error if a user is invalid or a name or nkey is used
// twice. anonymousRole is the role of clients without a user name, "" if they are
// refused.
func ValidateUsers(users []User, anonymousRole Role) error {
	seen := map[string]bool{} // names and nkeys
	for i := range users {
		u := &users[i]
		if err := u.Validate(); err != nil {
			return err
		}
		if seen[u.Name] || seen[u.NKey] {
			return fmt.Errorf("user %s, or its nkey, is defined twice", u.Name)
		}
		seen[u.Name], seen[u.NKey] = true, u.NKey != "" // most users have no nkey
	}
	if anonymousRole != "" && !slices.Contains(Roles, anonymousRole) {
		return fmt.Errorf("anonymous has the role %q; must be %s, or empty to refuse such clients", anonymousRole, roleNames)
	}
	if anonymousRole != "" && len(users) == 0 && anonymousRole != Operator && anonymousRole != Admin {
		return errors.New("anonymous needs users: without any, every client is an admin")
	}
	return nil
}

// The public subjects that the roles may publish to.
var (
	producerSubjects = []string{subjects.Jobs + ".*", api.SubjectEnqueue + ".*", api.SubjectCall + ".*"}
	jobSubjects      = withPrefix(api.SubjectAPI, "job.show", "job.result", "job.params", "job.wait") // of jobs that the user names
	workerSubjects   = withPrefix(api.SubjectExec, "QueueDispatch", "MarkNotified", "MarkDelivered", "MarkFailed")
	statusSubjects   = append(withPrefix(api.SubjectNode+".*", "health", "readiness"), api.SubjectStatus, api.SubjectSnapshot, api.SubjectAPI+".openapi")
	observerSubjects = slices.Concat(statusSubjects, withPrefix(api.SubjectAPI,
		"overview", "state.at", "state.diff", "job.show", "job.result", "job.params", "job.explain", "job.wait", "job.logs", "job.errors", "job.list", "job.find", "cron.list", "cron.show", "ledger.hash",
		"queue.list", "queue.show", "queue.explain", "retention.show", "schema.list", "schema.show", "limit.list", "limit.show", "operation.list", "operation.show", "operation.preview", "dlq.list", "dlq.show", "dlq.stats", "worker.list", "cluster.members", "cluster.scrub",
	), withPrefix(api.SubjectNode+".*", "snapshot", "status"), []string{"$SRV.>"}, streamReadSubjects)
	// Reading streams. Nodes create the consumers of users; see userConsumers.
	streamReadSubjects = append(withPrefix("$JS.API",
		"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.*", "STREAM.MSG.GET.*", "DIRECT.GET.>",
		"CONSUMER.NAMES.*", "CONSUMER.LIST.*", "CONSUMER.INFO.*.*", "CONSUMER.MSG.NEXT.*.*",
		"CONSUMER.CREATE.>", "CONSUMER.DELETE.*.*",
	), "$JS.FC.>")
)

// adminEndpoints are the endpoints of the API that only an admin may use besides those of
// backups: they change which nodes the yard consists of. So do the commands of the contract
// that take the authority, which yard.exec accepts, too.
var adminEndpoints = []string{"cluster-add", "cluster-rm", "cluster-replace", "cluster-cancel", "cluster-rebuild"}

// operatorSubjects are what an operator may do besides a producer and a viewer.
var operatorSubjects = func() []string {
	allowed := slices.Concat(withPrefix(api.SubjectNode+".*", subjects.NodeVerbs...), workerSubjects, withPrefix(api.SubjectExec, "RequestReplay", "CaptureSnapshot"))
	for i := range api.Endpoints {
		if e := &api.Endpoints[i]; strings.HasPrefix(e.Subject, api.SubjectAPI+".") && !slices.Contains(adminEndpoints, e.Name) {
			allowed = append(allowed, e.Subject)
		}
	}
	return allowed
}()

// refusedSubjects are requests to the JetStream API that would change streams. The roles
// that read streams may publish them: in the account of the users there is no JetStream,
// and a node answers them with an error. Without an answer, a client would wait until its
// timeout.
var refusedSubjects = withPrefix("$JS.API",
	"STREAM.CREATE.*", "STREAM.UPDATE.*", "STREAM.DELETE.*", "STREAM.PURGE.*", "STREAM.RESTORE.*", "STREAM.SNAPSHOT.*",
	"STREAM.MSG.DELETE.*", "STREAM.PEER.REMOVE.*", "STREAM.LEADER.STEPDOWN.*",
	"CONSUMER.DURABLE.CREATE.*.*", "CONSUMER.PAUSE.*.*", "CONSUMER.LEADER.STEPDOWN.*.*",
)

// ackSubjects are subjects that client libraries publish to and nothing subscribes
// to: users' consumers need no acknowledgements.
var ackSubjects = []string{"$JS.ACK.>"}

// withPrefix returns the subjects that begin with prefix and end with one of suffixes.
func withPrefix(prefix string, suffixes ...string) []string {
	list := make([]string, len(suffixes))
	for i, suffix := range suffixes {
		list[i] = prefix + "." + suffix
	}
	return list
}

// Permissions returns a function that reports whether the user may send a request to a
// subject, as the server decides over NATS.
func (u *User) Permissions() func(subject string) bool {
	allowed := u.publishSubjects()
	return func(subject string) bool {
		return slices.ContainsFunc(allowed, func(pattern string) bool { return server.SubjectMatchesFilter(subject, pattern) })
	}
}

// publishSubjects returns the public subjects that the user may publish to. Where a request
// names the queue or job only in the body, its handler decides by the user's Queues.
func (u *User) publishSubjects() []string {
	switch u.Role {
	case Producer:
		allowed := slices.Concat(jobSubjects, withPrefix(api.SubjectAPI, "job.bulk", "openapi"))
		if len(u.Queues) == 0 {
			return slices.Concat(producerSubjects, allowed)
		}
		for _, queue := range u.Queues {
			for _, pattern := range producerSubjects {
				allowed = append(allowed, strings.TrimSuffix(pattern, "*")+queue)
			}
		}
		return allowed
	case Worker:
		return slices.Concat(workerSubjects, statusSubjects, jobSubjects)
	case Viewer, Observer:
		return slices.Concat(observerSubjects, ackSubjects, refusedSubjects)
	case Operator:
		return slices.Concat(producerSubjects, observerSubjects, ackSubjects, refusedSubjects, operatorSubjects)
	}
	return slices.Concat(producerSubjects, observerSubjects, ackSubjects, refusedSubjects, withPrefix(api.SubjectNode+".*", subjects.NodeVerbs...),
		[]string{api.SubjectExec, api.SubjectExec + ".*", api.SubjectAPI + ".>"})
}

// eventSubjects lists the subjects that all roles except producers may subscribe to; a worker
// with queues only to those events that are of its queues.
var eventSubjects = []string{subjects.Live + ".>", subjects.Advisory + ".>"}

// subscribeSubjects returns all subjects that the user may subscribe to.
func (u *User) subscribeSubjects() []string {
	switch {
	case u.Role == Producer:
		return u.inboxSubjects()
	case len(u.Queues) > 0:
		return slices.Concat(withPrefix(subjects.Live+".*", u.Queues...), []string{subjects.Advisory + ".>"}, u.inboxSubjects())
	}
	return slices.Concat(eventSubjects, u.inboxSubjects())
}

// inboxSubjects returns the subjects on which only this user may receive replies. A
// client with an nkey knows its public key but not its name in the configuration, so
// it may use either. An anonymous client uses the default of its NATS library.
func (u *User) inboxSubjects() []string {
	switch {
	case u.Name == anonymous:
		return []string{"_INBOX.>"}
	case u.NKey != "":
		return []string{InboxPrefix(u.NKey) + ".>", InboxPrefix(u.Name) + ".>"}
	}
	return []string{InboxPrefix(u.Name) + ".>"}
}

// OwnsInbox reports whether subject is in an inbox of the user who logs in as login, which
// is as in [Config.UserName] or that of anonymous clients.
func (c *Config) OwnsInbox(login, subject string) bool {
	return slices.ContainsFunc(loginUsers(c), func(u User) bool {
		return login != "" && (login == u.Name || login == u.NKey) && slices.ContainsFunc(u.inboxSubjects(), func(inbox string) bool {
			return server.SubjectMatchesFilter(subject, inbox)
		})
	})
}

// InboxPrefix returns the prefix of the reply subjects of a user, given by name or
// by public nkey.
func InboxPrefix(user string) string { return "_INBOX_" + user }
