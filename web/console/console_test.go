package console

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
	"github.com/yardmaster-dev/yardmaster/web/console/tail"
)

// testYard replies to the calls of a console, and keeps those that act.
type testYard struct {
	replies map[string]any // by endpoint
	calls   chan *calls.Call
}

func (y *testYard) call(_ context.Context, call *calls.Call) ([]byte, error) {
	if call.Actor != "" {
		y.calls <- call
	}
	reply, ok := y.replies[call.Endpoint]
	if !ok {
		return nil, &api.Error{Code: api.CodeUnavailable, Text: "no quorum"}
	}
	if err, refused := reply.(*api.Error); refused {
		return nil, err
	}
	return json.Marshal(reply)
}

// newConsole returns a console with users of all roles.
func newConsole(t *testing.T, change func(*Config)) (*Console, *testYard) {
	t.Helper()
	yard := &testYard{calls: make(chan *calls.Call, 10), replies: map[string]any{
		"status":     api.Status{Node: "n1", Mode: "single", Authority: api.AuthorityStatus{Owner: "n1"}},
		"queue-list": api.QueueList{Queues: []api.Queue{{Name: "mail", State: "running", Counts: map[string]int{"waiting": 3}}}},
		"limit-list": api.LimitList{}, "queue-pause": api.Queue{},
	}}
	hash, err := bcrypt.GenerateFromPassword([]byte("letmein"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	anything := func(string) bool { return true }
	cfg := Config{
		Node: "n1", Secret: func() []byte { return []byte("secret of the yard") }, Call: yard.call,
		Users: []session.User{
			{Name: "ann", Role: "operator", Token: "ann-token", May: anything},
			{Name: "bob", Role: "observer", Password: string(hash), May: func(subject string) bool { return subject != api.Subject("queue-pause") }},
		},
		Applied: func() (uint64, <-chan struct{}) { return 1, nil },
		Events: tail.Source{
			Since: func(context.Context, time.Time) ([]byte, uint64, error) { return nil, 1, nil },
			From:  func(_ context.Context, from uint64) ([]byte, uint64, error) { return nil, from, nil },
			End:   func(context.Context) (uint64, error) { return 1, nil },
		},
		Peers: func(context.Context) []pages.Peer { return nil }, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c, yard
}

// startConsole serves a console with users of all roles, and returns a client that keeps
// cookies only if the test passes them on, and does not follow redirects.
func startConsole(t *testing.T, change func(*Config)) (*httptest.Server, *testYard) {
	t.Helper()
	c, yard := newConsole(t, change)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	server.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return server, yard
}

// request sends a request with cookies and returns the response and its text.
func request(t *testing.T, s *httptest.Server, method, path string, form url.Values, cookies ...*http.Cookie) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, c := range cookies {
		r.AddCookie(c)
	}
	response, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

// signIn returns the cookie of a session, nil if the sign-in is refused.
func signIn(t *testing.T, s *httptest.Server, form url.Values) *http.Cookie {
	t.Helper()
	response, _ := request(t, s, "POST", Path+"sign-in", form)
	for _, c := range response.Cookies() {
		if c.Name == session.Cookie {
			return c
		}
	}
	return nil
}

func TestSignIn(t *testing.T) {
	s, _ := startConsole(t, nil)
	if r, _ := request(t, s, "GET", Path+"queues", nil); r.StatusCode != http.StatusSeeOther || !strings.HasPrefix(r.Header.Get("Location"), Path+"sign-in?next=") {
		t.Errorf("without a session: %s to %q", r.Status, r.Header.Get("Location"))
	}
	for _, form := range []url.Values{{"token": {"wrong"}}, {"user": {"bob"}, "password": {"wrong"}}, {"user": {"ann"}, "password": {""}}, {}} {
		if signIn(t, s, form) != nil {
			t.Errorf("signed in with %v", form)
		}
	}
	for _, form := range []url.Values{{"token": {"ann-token"}}, {"user": {"bob"}, "password": {"letmein"}}} {
		c := signIn(t, s, form)
		if c == nil || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode {
			t.Fatalf("cookie %v with %v", c, form)
		}
		if r, text := request(t, s, "GET", Path+"queues", nil, c); r.StatusCode != http.StatusOK || !strings.Contains(text, ">mail<") {
			t.Errorf("%v: %s", form, r.Status)
		}
		c.Value = "x" + c.Value
		if r, _ := request(t, s, "GET", Path+"queues", nil, c); r.StatusCode != http.StatusSeeOther {
			t.Errorf("%v: a changed cookie gets %s", form, r.Status)
		}
	}
}

// A session that one node has begun is valid at another one, unless the token differs there.
func TestSession_OtherNode(t *testing.T) {
	first, _ := startConsole(t, nil)
	c := signIn(t, first, url.Values{"token": {"ann-token"}})
	second, _ := startConsole(t, nil)
	if r, _ := request(t, second, "GET", Path+"queues", nil, c); r.StatusCode != http.StatusOK {
		t.Errorf("at another node: %s", r.Status)
	}
	third, _ := startConsole(t, func(cfg *Config) { cfg.Users[0].Token = "another" })
	if r, _ := request(t, third, "GET", Path+"queues", nil, c); r.StatusCode != http.StatusSeeOther {
		t.Errorf("after a change of the token: %s", r.Status)
	}
	other, _ := startConsole(t, func(cfg *Config) { cfg.Secret = func() []byte { return []byte("another yard") } })
	if r, _ := request(t, other, "GET", Path+"queues", nil, c); r.StatusCode != http.StatusSeeOther {
		t.Errorf("at another yard: %s", r.Status)
	}
}

func TestSignIn_TooManyFailures(t *testing.T) {
	s, _ := startConsole(t, nil)
	for range session.MaxFailures {
		signIn(t, s, url.Values{"token": {"wrong"}})
	}
	if r, _ := request(t, s, "POST", Path+"sign-in", url.Values{"token": {"ann-token"}}); r.StatusCode != http.StatusTooManyRequests {
		t.Errorf("after %d failures: %s", session.MaxFailures, r.Status)
	}
}

// The button to sign out ends the session that the browser has, also on a page of an earlier
// one, but no page of another site can end it.
func TestSignOut(t *testing.T) {
	s, _ := startConsole(t, nil)
	ann, bob := signIn(t, s, url.Values{"token": {"ann-token"}}), signIn(t, s, url.Values{"user": {"bob"}, "password": {"letmein"}})
	_, page := request(t, s, "GET", Path+"queues", nil, ann)
	for _, c := range []struct {
		site   string
		status int
		ends   bool
	}{{"same-origin", http.StatusSeeOther, true}, {"cross-site", http.StatusForbidden, false}, {"same-site", http.StatusForbidden, false}} {
		form := url.Values{"form": {formOf(t, page)}}
		r, err := http.NewRequest("POST", s.URL+Path+"sign-out", strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", c.site)
		r.AddCookie(bob)
		response, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		ends := slices.ContainsFunc(response.Cookies(), func(c *http.Cookie) bool { return c.Name == session.Cookie && c.MaxAge < 0 })
		if response.StatusCode != c.status || ends != c.ends {
			t.Errorf("%s: %s, ends the session: %t", c.site, response.Status, ends)
		}
	}
}

// formOf returns the form token of a page.
func formOf(t *testing.T, text string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, `name="form" value="`)
	if !ok {
		t.Fatal("the page has no form")
	}
	token, _, _ := strings.Cut(rest, `"`)
	return token
}

// An act needs the form token of the same session and a role that allows it, and is recorded
// with its actor.
func TestAct(t *testing.T) {
	s, yard := startConsole(t, nil)
	ann, bob := signIn(t, s, url.Values{"token": {"ann-token"}}), signIn(t, s, url.Values{"user": {"bob"}, "password": {"letmein"}})
	_, annPage := request(t, s, "GET", Path+"queues", nil, ann)
	_, bobPage := request(t, s, "GET", Path+"queues", nil, bob)
	if strings.Contains(bobPage, "queue-pause") || !strings.Contains(annPage, "queue-pause") {
		t.Error("the button is not shown to exactly those who may use it")
	}
	for _, c := range []struct {
		cookie *http.Cookie
		form   string
		status int
	}{{ann, "", http.StatusSeeOther}, {ann, formOf(t, bobPage), http.StatusSeeOther}, {bob, formOf(t, bobPage), http.StatusForbidden}} {
		r, _ := request(t, s, "POST", Path+"act/queue-pause", url.Values{"form": {c.form}, "name": {"mail"}}, c.cookie)
		if r.StatusCode != c.status || len(yard.calls) > 0 {
			t.Errorf("%s: %s, %d acts", c.form, r.Status, len(yard.calls))
		}
	}
	form := url.Values{"form": {formOf(t, annPage)}, "name": {"mail"}, "back": {Path + "queues"}, "reason": {"maintenance"}}
	r, _ := request(t, s, "POST", Path+"act/queue-pause", form, ann)
	if r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != Path+"queues" {
		t.Fatalf("%s to %q", r.Status, r.Header.Get("Location"))
	}
	if act := <-yard.calls; act.Endpoint != "queue-pause" || act.Actor != "ann" || act.Reason != "maintenance" || string(act.Data) != `{"name":"mail"}` {
		t.Errorf("act %+v with %s", act, act.Data)
	}
	_, page := request(t, s, "GET", Path+"queues", nil, append(r.Cookies(), ann)...)
	if !strings.Contains(page, "Queue mail paused") {
		t.Error("the next page does not say what happened")
	}
}

// A form of a page of another site changes nothing.
func TestAct_OtherSite(t *testing.T) {
	s, yard := startConsole(t, func(cfg *Config) {
		cfg.Users, cfg.Anonymous = nil, &session.User{May: func(string) bool { return true }}
	})
	_, page := request(t, s, "GET", Path+"queues", nil)
	form := url.Values{"form": {formOf(t, page)}, "name": {"mail"}}
	r, err := http.NewRequest("POST", s.URL+Path+"act/queue-pause", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	response, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusForbidden || len(yard.calls) > 0 {
		t.Errorf("%s, %d acts", response.Status, len(yard.calls))
	}
	if r, _ := request(t, s, "POST", Path+"act/queue-pause", form); r.StatusCode != http.StatusSeeOther || (<-yard.calls).Actor == "" {
		t.Errorf("without an origin: %s", r.Status)
	}
}

// A page without data about the yard reports that.
func TestPage_Unknown(t *testing.T) {
	for applied, want := range map[uint64]string{0: "No quorum: this node has started again", 7: "No quorum: this node reaches no majority"} {
		s, yard := startConsole(t, nil)
		yard.replies["status"] = api.Status{Node: "n1", Mode: "cluster", Raft: api.RaftStatus{Applied: applied}}
		delete(yard.replies, "limit-list")
		ann := signIn(t, s, url.Values{"token": {"ann-token"}})
		r, text := request(t, s, "GET", Path, nil, ann)
		if r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, want) || !strings.Contains(text, "This cannot be shown now") {
			t.Errorf("%s %s", r.Status, text)
		}
	}
}

// An address of no page has the console's error page, and one with parameters that a page does not know or
// cannot read says so.
func TestPage_WrongAddress(t *testing.T) {
	s, yard := startConsole(t, nil)
	yard.replies["operation-list"] = api.OperationList{}
	ann := signIn(t, s, url.Values{"token": {"ann-token"}})
	for _, c := range []struct {
		path   string
		status int
		want   string
	}{
		{"no-such-page", http.StatusNotFound, "there is no page /console/no-such-page"},
		{"queues/mail/jobs/7?x=1", http.StatusNotFound, "there is no page /console/queues/mail/jobs/7"},
		{"operations?limit=many&cursor=7", http.StatusOK, "parameter &#34;limit&#34;, which this page does not know and ignores. It knows: after."},
		{"operations?after=x7", http.StatusBadRequest, "after is &#34;x7&#34; in the address"},
		{"dead-letters?after=x7", http.StatusBadRequest, "after is &#34;x7&#34; in the address"},
		{"operations?after=7", http.StatusOK, "Operations"},
	} {
		r, text := request(t, s, "GET", Path+c.path, nil, ann)
		if r.StatusCode != c.status || !strings.Contains(text, c.want) || !strings.Contains(text, `<nav class="side"`) || c.path == "operations?after=7" && strings.Contains(text, "ignores") {
			t.Errorf("%s: %s %s", c.path, r.Status, text)
		}
	}
	if r, _ := request(t, s, "GET", Path+"no-such-page", nil); r.StatusCode != http.StatusSeeOther {
		t.Errorf("without a session: %s", r.Status)
	}
}

// A stream sends the main part of the page, with the form token of the session of the stream.
func TestStream(t *testing.T) {
	s, _ := startConsole(t, nil)
	ann := signIn(t, s, url.Values{"token": {"ann-token"}})
	_, page := request(t, s, "GET", Path+"queues", nil, ann)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", s.URL+Path+"queues", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.AddCookie(ann)
	response, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got := make([]byte, 0, 64<<10)
	for want := `name="form" value="` + formOf(t, page); !strings.Contains(string(got), want); {
		n, err := response.Body.Read(got[len(got):cap(got)])
		got = got[:len(got)+n]
		if err != nil {
			t.Fatalf("the stream ends after %q: %v", got, err)
		}
	}
	if !strings.HasPrefix(string(got), "event: main\ndata: ") {
		t.Errorf("stream %.200q", got)
	}
}

// TestJob_Unread checks that the page of a job says which parts cannot be read now.
func TestJob_Unread(t *testing.T) {
	s, yard := startConsole(t, nil)
	yard.replies["job-explain"] = api.JobExplanation{State: "completed", Verdict: "It completed.", Job: &api.Job{State: "completed", Queue: "mail", Key: "order-7"}}
	response, page := request(t, s, "GET", Path+"jobs/order-7", nil, signIn(t, s, url.Values{"token": {"ann-token"}}))
	if response.StatusCode != http.StatusOK {
		t.Fatal(response.Status, page)
	}
	for _, want := range []string{"It completed.", "order-7", "Not read: no quorum", "Not read, as the params."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
	for _, wrong := range []string{"This job has none", "There is none", "has written nothing"} {
		if strings.Contains(page, wrong) {
			t.Errorf("the page says %q, which is not known", wrong)
		}
	}
}

// The end of the authority's lease in the past is a time as any other, if it is one.
func TestPast_Lease(t *testing.T) {
	s, yard := startConsole(t, nil)
	ann := signIn(t, s, url.Values{"token": {"ann-token"}})
	for until, want := range map[string]string{
		"2026-03-19T02:00:00.5Z": `until <time datetime="2026-03-19T02:00:00.5Z" title="2026-03-19 02:00:00.500 UTC">2026-03-19 02:00:00 UTC</time>`,
		"tomorrow":               "until tomorrow<",
	} {
		yard.replies["state-at"] = api.State{State: json.RawMessage(`{"authority":{"owner":"n1","leased_until":"` + until + `"}}`)}
		if r, page := request(t, s, "GET", Path+"past", nil, ann); r.StatusCode != http.StatusOK || !strings.Contains(page, want) {
			t.Errorf("%s: %s, the page does not have %s", until, r.Status, want)
		}
	}
}

// TestPage_One checks the nouns of the number one.
func TestPage_One(t *testing.T) {
	s, yard := startConsole(t, nil)
	q := api.Queue{Name: "mail", State: "running"}
	yard.setQueue(q)
	yard.replies["queue-explain"] = api.QueueExplanation{Queue: q, Nodes: []api.NodeExecutors{
		{Node: "n1", Workers: &api.Subscribers{Count: 1, Credits: 1}}, {Node: "n2", Workers: &api.Subscribers{Count: 2, Credits: 0}}}}
	yard.replies["worker-list"] = api.WorkerList{Nodes: []api.NodeWorkers{{Node: "n1", Running: 1}, {Node: "n2", Running: 2}}}
	ann := signIn(t, s, url.Values{"token": {"ann-token"}})
	for path, want := range map[string][]string{"queues/mail": {"1 worker, 1 job can start now", "2 workers, 0 jobs can start now"}, "workers": {"1 job running", "2 jobs running"}} {
		_, page := request(t, s, "GET", Path+path, nil, ann)
		for _, text := range want {
			if !strings.Contains(page, text) {
				t.Errorf("%s does not have %q", path, text)
			}
		}
	}
}
