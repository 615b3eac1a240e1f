package session

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"time"

	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"golang.org/x/crypto/bcrypt"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// Config is whose sessions there are. All fields are required unless they say otherwise.
type Config struct {
	Path string // of the pages that get the cookie
	TLS  bool   // the cookie is only for encrypted connections
	// Users may sign in. Anonymous is the user of requests without a session; nil: they
	// have to sign in.
	Users     []User
	Anonymous *User
	// Secret returns the key of the yard from which sessions are signed, or nil while
	// there is none.
	Secret func() []byte
}

// Cookie is the name of a session's cookie.
const Cookie = "yard_session"

// Times of sessions.
const (
	sessionTime = 12 * time.Hour
	formTime    = 12 * time.Hour // during which the forms of a page can be sent
)

// Limits of failed sign-ins.
const (
	MaxFailures   = 10  // of one address in a minute
	maxAddresses  = 200 // with failures that are counted one by one; together beyond that
	failureWindow = time.Minute
)

// session is the content of a session's cookie, which any node of the yard can check.
type session struct {
	User        string `json:"u"`
	Kind        string `json:"k"` // token or password
	Credential  string `json:"c"` // digest of what the user has signed in with
	ExpiresUnix int64  `json:"x"`
}

// Sessions signs users in, and finds the user of a request.
type Sessions struct {
	cfg     Config
	own     []byte        // key while the yard has none
	hashing chan struct{} // semaphore of the checks of passwords

	mu       crash.Mutex
	failures map[string]int // by address, since the window began
	window   time.Time
}

// New returns sessions of the users of a configuration.
func New(cfg Config) *Sessions {
	s := &Sessions{cfg: cfg, own: make([]byte, 32), hashing: make(chan struct{}, 2), failures: map[string]int{}}
	_, _ = rand.Read(s.own) // never fails
	return s
}

// sum returns the keyed digest of a text that is used for one purpose.
func (s *Sessions) sum(purpose, text string) []byte {
	secret := s.cfg.Secret()
	if len(secret) == 0 {
		secret = s.own
	}
	key := hmac.New(sha256.New, secret)
	_, _ = key.Write([]byte("yardmaster console\x00" + purpose)) // never fails
	mac := hmac.New(sha256.New, key.Sum(nil))
	_, _ = mac.Write([]byte(text))
	return mac.Sum(nil)
}

// credential returns the digest of what a user signs in with. A session ends at a node
// when the user's token or password there changes.
func (s *Sessions) credential(u *User) string {
	return base64.RawURLEncoding.EncodeToString(s.sum("credential", u.Token+"\x00"+u.Password)[:12])
}

// Begin returns the cookie of a new session of u.
func (s *Sessions) Begin(u *User, now time.Time) *http.Cookie {
	text, _ := json.Marshal(session{User: u.Name, Kind: u.Kind(), Credential: s.credential(u), ExpiresUnix: now.Add(sessionTime).Unix()}) // has no error
	payload := base64.RawURLEncoding.EncodeToString(text)
	return &http.Cookie{
		Name: Cookie, Value: payload + "." + base64.RawURLEncoding.EncodeToString(s.sum("session", payload)), Path: s.cfg.Path,
		MaxAge: int(sessionTime.Seconds()), HttpOnly: true, Secure: s.cfg.TLS, SameSite: http.SameSiteStrictMode,
	}
}

// End returns a cookie that ends a session.
func (s *Sessions) End() *http.Cookie {
	return &http.Cookie{Name: Cookie, Path: s.cfg.Path, MaxAge: -1, HttpOnly: true, Secure: s.cfg.TLS, SameSite: http.SameSiteStrictMode}
}

// UserOf returns the user of a request's session, nil if it has no valid one.
func (s *Sessions) UserOf(r *http.Request) *User {
	cookie, err := r.Cookie(Cookie)
	if err != nil {
		return nil
	}
	payload, signature, _ := strings.Cut(cookie.Value, ".")
	given, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(given, s.sum("session", payload)) {
		return nil
	}
	text, err := base64.RawURLEncoding.DecodeString(payload)
	var found session
	if err != nil || json.Unmarshal(text, &found) != nil || time.Now().Unix() >= found.ExpiresUnix {
		return nil
	}
	for i := range s.cfg.Users {
		u := &s.cfg.Users[i]
		if u.Name == found.User && u.Kind() == found.Kind && subtle.ConstantTimeCompare([]byte(s.credential(u)), []byte(found.Credential)) == 1 {
			return u
		}
	}
	return nil
}

// Visitor returns the user of a request: that of its session, or else the anonymous one,
// which may be nil.
func (s *Sessions) Visitor(r *http.Request) *User {
	if u := s.UserOf(r); u != nil {
		return u
	}
	return s.cfg.Anonymous
}

// FormToken returns the text that the forms of a request's pages carry. It belongs to the
// session and to a period, of which the last one is accepted, too.
func (s *Sessions) FormToken(r *http.Request) string { return s.formToken(r, period(time.Now())) }

// formToken returns the text for a period.
func (s *Sessions) formToken(r *http.Request, period int64) string {
	owner := "anonymous"
	if cookie, err := r.Cookie(Cookie); err == nil {
		owner = cookie.Value
	}
	at, _ := time.Unix(period, 0).UTC().MarshalText() // has no error for such times
	return base64.RawURLEncoding.EncodeToString(s.sum("form", owner+"\x00"+string(at))[:16])
}

// period returns the beginning of the period of forms that a time is in.
func period(at time.Time) int64 { return at.Truncate(formTime).Unix() }

// CheckForm reports whether a form comes from a page that this yard has served to the same
// session.
func (s *Sessions) CheckForm(r *http.Request) bool {
	given := []byte(r.PostFormValue("form"))
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(-formTime)} {
		if subtle.ConstantTimeCompare(given, []byte(s.formToken(r, period(at)))) == 1 {
			return true
		}
	}
	return false
}

// Find returns the user with a token, or with a name and a password; nil if there is none.
func (s *Sessions) Find(token, name, password string) *User {
	var found *User
	digest := sha256.Sum256([]byte(token))
	for i := range s.cfg.Users {
		u := &s.cfg.Users[i]
		switch {
		case u.Token != "" && token != "":
			known := sha256.Sum256([]byte(u.Token))
			if subtle.ConstantTimeCompare(digest[:], known[:]) == 1 {
				found = u
			}
		case u.Password != "" && u.Name == name && token == "" && s.hasPassword(u, password):
			found = u
		}
	}
	return found
}

// hasPassword reports whether password is the user's.
func (s *Sessions) hasPassword(u *User, password string) bool {
	if strings.HasPrefix(u.Password, "$2") {
		s.hashing <- struct{}{} // a check takes tens of milliseconds of a processor
		defer func() { <-s.hashing }()
		return bcrypt.CompareHashAndPassword([]byte(u.Password), []byte(password)) == nil
	}
	given, known := sha256.Sum256([]byte(password)), sha256.Sum256([]byte(u.Password))
	return subtle.ConstantTimeCompare(given[:], known[:]) == 1
}

// address returns under what the failures of a request are counted: the address of the
// client, and one entry for all beyond maxAddresses. s.mu must be held.
func (s *Sessions) address(r *http.Request) string {
	if now := time.Now(); now.Sub(s.window) > failureWindow {
		s.window, s.failures = now, map[string]int{}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	if _, known := s.failures[host]; !known && len(s.failures) >= maxAddresses {
		return ""
	}
	return host
}

// MayTry reports whether the client of a request may try to sign in.
func (s *Sessions) MayTry(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[s.address(r)] < MaxFailures
}

// Fail counts a failed sign-in.
func (s *Sessions) Fail(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[s.address(r)]++
}
