package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

// User is a user of the server, with the permissions of a role.
type User struct {
	Name  string // "" for requests without a token
	Role  string // for error messages
	Token string
	May   func(subject string) bool // reports whether the user may send the request of this subject over NATS

	Queues []string // the only queues that the user may use, and whose jobs it may read; nil: all
	Quota  string   // the name under which the user's new queues are counted; "": they are not
}

// metricsSubject is the subject that a user of /metrics must be allowed: statistics of the
// services over NATS.
const metricsSubject = "$SRV.STATS"

// anyone is the user of all requests if none are configured.
var anyone = &User{May: func(string) bool { return true }}

// users are the users of a server.
type users struct {
	list      []User
	digests   [][sha256.Size]byte // of the tokens in list
	anonymous *User               // of requests without a token; nil: they are refused
}

// newUsers returns the users of a server; with neither list nor anonymous every request
// is anyone's.
func newUsers(list []User, anonymous *User) users {
	u := users{list: list, anonymous: anonymous, digests: make([][sha256.Size]byte, len(list))}
	if len(list) == 0 && anonymous == nil {
		u.anonymous = anyone
	}
	for i := range list {
		u.digests[i] = sha256.Sum256([]byte(list[i].Token))
	}
	return u
}

// find returns the user whose token the header has, nil if the token is not known. The
// time that it takes does not depend on the token.
func (u *users) find(header string) (found *User) {
	scheme, token, _ := strings.Cut(header, " ")
	digest := sha256.Sum256([]byte(strings.TrimSpace(token)))
	for i := range u.list {
		if subtle.ConstantTimeCompare(digest[:], u.digests[i][:]) == 1 {
			found = &u.list[i]
		}
	}
	if !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	return found
}

// RequiresToken reports whether requests without a token are refused.
func (s *Server) RequiresToken() bool { return s.users.anonymous == nil }

// userKey is the key of the user in a request's context.
type userKey struct{}

// userOf returns the user that authenticate has found for a request.
func userOf(r *http.Request) *User { return r.Context().Value(userKey{}).(*User) }

// authenticate returns the request with its user. It refuses an unknown token, and a
// request without one unless that is allowed. It also refuses requests that a browser makes
// for a page of another site: with a browser on the node's host, they would come from
// inside the firewall.
func (s *Server) authenticate(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	if err := s.crossOrigin.Check(r); err != nil {
		return nil, &api.Error{Code: api.CodeForbidden, Text: "requests from pages of other sites are not allowed: " + err.Error()}
	}
	header := r.Header.Get("Authorization")
	user := s.users.find(header)
	if user == nil && (header == "" || len(s.users.list) == 0) {
		if user = s.users.anonymous; user != nil && !TrustedHost(r.Host) {
			return nil, &api.Error{Code: api.CodeForbidden, Text: fmt.Sprintf(
				"host %q is not allowed: without a token this node serves only addresses, localhost and names without a dot, because a page of another site may use a DNS name that resolves to this node; use its address, or set http.token", r.Host)}
		}
	}
	if user == nil {
		text := "a token of http.users, or http.token, is required: Authorization: Bearer <token>"
		if header != "" {
			text = "the token is not one of http.users or http.token: send Authorization: Bearer <token>"
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="yardmaster"`)
		return nil, &api.Error{Code: api.CodeUnauthorized, Text: text}
	}
	return r.WithContext(context.WithValue(r.Context(), userKey{}, user)), nil
}

// String returns the user as error messages name it.
func (u *User) String() string {
	if u.Name == "" {
		return "a request without a token"
	}
	return "user " + u.Name
}

// require returns an error unless the user may send the request of a subject. what is the
// request, for the error.
func (u *User) require(subject, what string) error {
	if u.May(subject) {
		return nil
	}
	return &api.Error{Code: api.CodeForbidden, Text: fmt.Sprintf(
		"%s has the role %s, which does not allow %s; docs/guides/secure.md lists what each role may", u, u.Role, what)}
}

// allows returns an error unless the user may send a request to the endpoint, whose
// subject has the value of the wildcard in r's path.
func (e *endpoint) allows(u *User, r *http.Request) error {
	if e.Subject == "" { // the OpenAPI document
		return nil
	}
	return u.require(strings.Replace(e.Subject, "*", r.PathValue(e.Token), 1), e.Pattern)
}
