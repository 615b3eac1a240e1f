package session

import "github.com/yardmaster-dev/yardmaster/api"

// User is a user of the console, with the permissions of a role. A user has a token or a
// password.
type User struct {
	Name     string // "" for requests without a session
	Role     string
	Token    string
	Password string                    // plain text or a bcrypt hash
	Quota    string                    // the name under which the user's new queues are counted; "": they are not
	May      func(subject string) bool // reports whether the user may send the request of this subject over NATS
}

// MayUse reports whether the user may use an endpoint, or with a node that member's.
func (u *User) MayUse(endpoint, node string) bool {
	if node != "" {
		return u.May(api.NodeSubject(node, endpoint))
	}
	return u.May(api.Subject(endpoint))
}

// String returns the user as messages name it.
func (u *User) String() string {
	if u.Name == "" {
		return "a visitor without a sign-in"
	}
	return "user " + u.Name
}

// Kind returns how the user signs in: with a token or a password.
func (u *User) Kind() string {
	if u.Token != "" {
		return "token"
	}
	return "password"
}
