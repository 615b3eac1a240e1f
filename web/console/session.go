package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// User is a user of the console, with the permissions of a role. A user has a token or a
// password.
type User struct {
	Name     string // "" for requests without a session
	Role     string
	Token    string
	Password string                    // plain text or a bcrypt hash
	May      func(subject string) bool // reports whether the user may send the request of this subject over NATS
}

// Settings of sessions.
const (
	sessionCookie = "yard_session"
	flashCookie   = "yard_flash"
	sessionTime   = 12 * time.Hour
	formTime      = 12 * time.Hour // during which the forms of a page can be sent
)

// Limits of failed sign-ins.
const (
	maxFailures   = 10  // of one address in failureWindow
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

// sessions signs users in, and finds the user of a request.
type sessions struct {
	cfg     *Config
	own     []byte        // key while the yard has none
	hashing chan struct{} // semaphore of the checks of passwords

	mu       sync.Mutex
	failures map[string]int // by address, since the window began
	window   time.Time
}

func newSessions(cfg *Config) *sessions {
	s := &sessions{cfg: cfg, own: make([]byte, 32), hashing: make(chan struct{}, 2), failures: map[string]int{}}
	_, _ = rand.Read(s.own) // never fails
	return s
}

// sum returns the keyed digest of a text that is used for one purpose.
func (s *sessions) sum(purpose, text string) []byte {
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
func (s *sessions) credential(u *User) string {
	return base64.RawURLEncoding.EncodeToString(s.sum("credential", u.Token+"\x00"+u.Password)[:12])
}

// kind returns how a user signs in.
func (u *User) kind() string {
	if u.Token != "" {
		return "token"
	}
	return "password"
}

// cookie returns the cookie of a new session of u.
func (s *sessions) cookie(u *User, now time.Time) *http.Cookie {
	text, _ := json.Marshal(session{User: u.Name, Kind: u.kind(), Credential: s.credential(u), ExpiresUnix: now.Add(sessionTime).Unix()}) // has no error
	payload := base64.RawURLEncoding.EncodeToString(text)
	return &http.Cookie{
		Name: sessionCookie, Value: payload + "." + base64.RawURLEncoding.EncodeToString(s.sum("session", payload)), Path: Path,
		MaxAge: int(sessionTime.Seconds()), HttpOnly: true, Secure: s.cfg.TLS, SameSite: http.SameSiteStrictMode,
	}
}

// userOf returns the user of a request's session, nil if it has no valid one.
func (s *sessions) userOf(r *http.Request) *User {
	cookie, err := r.Cookie(sessionCookie)
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
		if u.Name == found.User && u.kind() == found.Kind && subtle.ConstantTimeCompare([]byte(s.credential(u)), []byte(found.Credential)) == 1 {
			return u
		}
	}
	return nil
}

// visitor returns the user of a request: that of its session, or else the anonymous one,
// which may be nil.
func (s *sessions) visitor(r *http.Request) *User {
	if u := s.userOf(r); u != nil {
		return u
	}
	return s.cfg.Anonymous
}

// formToken returns the text that the forms of a request's pages carry. It belongs to the
// session and to a period, of which the last one is accepted, too.
func (s *sessions) formToken(r *http.Request, period int64) string {
	owner := "anonymous"
	if cookie, err := r.Cookie(sessionCookie); err == nil {
		owner = cookie.Value
	}
	at, _ := time.Unix(period, 0).UTC().MarshalText() // has no error for such times
	return base64.RawURLEncoding.EncodeToString(s.sum("form", owner+"\x00"+string(at))[:16])
}

// period returns the beginning of the period of forms that a time is in.
func period(at time.Time) int64 { return at.Truncate(formTime).Unix() }

// checkForm reports whether a form comes from a page that this yard has served to the same
// session.
func (s *sessions) checkForm(r *http.Request) bool {
	given := []byte(r.PostFormValue("form"))
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(-formTime)} {
		if subtle.ConstantTimeCompare(given, []byte(s.formToken(r, period(at)))) == 1 {
			return true
		}
	}
	return false
}

// find returns the user with a token, or with a name and a password; nil if there is none.
func (s *sessions) find(token, name, password string) *User {
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
func (s *sessions) hasPassword(u *User, password string) bool {
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
func (s *sessions) address(r *http.Request) string {
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

// mayTry reports whether the client of a request may try to sign in.
func (s *sessions) mayTry(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures[s.address(r)] < maxFailures
}

// failed counts a failed sign-in.
func (s *sessions) failed(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[s.address(r)]++
}

// serveSignIn handles the form of the page sign-in.
func (c *Console) serveSignIn(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.PostFormValue("next"))
	if !c.sessions.mayTry(r) {
		w.Header().Set("Retry-After", "60")
		c.renderSignIn(w, r, http.StatusTooManyRequests, next, "Too many failed sign-ins from this address. Wait a minute, then try again.")
		return
	}
	u := c.sessions.find(strings.TrimSpace(r.PostFormValue("token")), r.PostFormValue("user"), r.PostFormValue("password"))
	if u == nil {
		c.sessions.failed(r)
		c.cfg.Log.Warn("console sign-in refused", "user", shorten(r.PostFormValue("user"), 64), "remote", r.RemoteAddr)
		c.renderSignIn(w, r, http.StatusUnauthorized, next, "That is not a token of http.users or http.token, nor a name and password of nats.users.")
		return
	}
	http.SetCookie(w, c.sessions.cookie(u, time.Now()))
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// serveSignOut ends the session of a browser.
func (c *Console) serveSignOut(w http.ResponseWriter, r *http.Request) {
	if c.sessions.checkForm(r) {
		http.SetCookie(w, &http.Cookie{Name: sessionCookie, Path: Path, MaxAge: -1, HttpOnly: true, Secure: c.cfg.TLS, SameSite: http.SameSiteStrictMode})
	}
	http.Redirect(w, r, Path+"sign-in", http.StatusSeeOther)
}

// localPath returns path if it is one of the console's, and otherwise the first page's.
func localPath(path string) string {
	if strings.HasPrefix(path, Path) && !strings.ContainsAny(path, "\\\r\n") && !strings.Contains(path, "//") {
		return path
	}
	return Path
}
