package console

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// page is one page of the console.
type page struct {
	path     string // pattern below [Path]
	name     string // of its template
	nav      string // of its entry in the navigation; "" means the page has none
	title    func(v *view) string
	load     func(ctx context.Context, c *Console, v *view) (any, error)
	template *template.Template
}

// view is a page as a user asks for it.
type view struct {
	user  *User
	name  string // of what the page is about
	query url.Values
	url   string
}

// frame is what the templates show.
type frame struct {
	*view
	Page    *page
	Data    any
	Problem *api.Error // why there is no Data
	Node    string
	Version string
	Form    string
	Notices []string // what the page cannot show now
	Status  *api.Status
	Nav     []entry
	Flash   *flash
	Peers   []Peer
	Theme   string // light or dark; "" means as the browser has it
	SignIn  bool   // there is a session, or could be
	Next    string // page after the sign-in
	ctx     context.Context
}

// entry is an entry of the navigation.
type entry struct{ Path, Name, Key string }

// navigation lists the entries in order. Key is the letter that follows g.
var navigation = []entry{
	{"", "Overview", "o"}, {"queues", "Queues", "q"}, {"jobs", "Jobs", "j"}, {"workers", "Workers", "w"}, {"dead-letters", "Dead letters", "d"},
	{"cron", "Cron", "c"}, {"limits", "Limits", "l"}, {"members", "Members", "m"}, {"events", "Events", "e"}, {"settings", "Settings", "s"},
}

// Title returns the title of the page.
func (f *frame) Title() string { return f.Page.title(f.view) }

// Heading returns the title of the page as HTML.
func (f *frame) Heading() template.HTML {
	if f.name != "" {
		title, _, _ := strings.Cut(f.Page.title(&view{}), " ·")
		return template.HTML(template.HTMLEscapeString(title)) + " " + shown(f.name, cutName, false) //nolint:gosec // escaped
	}
	return template.HTML(template.HTMLEscapeString(f.Title())) //nolint:gosec // escaped
}

// PageName returns the name of the page, PageNav its entry in the navigation.
func (f *frame) PageName() string { return f.Page.name }
func (f *frame) PageNav() string  { return f.Page.nav }

// User returns the user that the page is shown to.
func (f *frame) User() *User { return f.user }

// URL returns the address of the page.
func (f *frame) URL() string { return f.url }

// May reports whether the user may use an endpoint.
func (f *frame) May(endpoint string) bool { return f.user != nil && mayUse(f.user, endpoint, "") }

// Query returns a parameter of the page.
func (f *frame) Query(name string) string { return f.query.Get(name) }

// With returns the address of the page with another value of a parameter, from the first
// result on.
func (f *frame) With(name, value string) string {
	q := url.Values{}
	for key, values := range f.query {
		if key != "after" {
			q[key] = values
		}
	}
	q.Set(name, value)
	if value == "" {
		q.Del(name)
	}
	path, _, _ := strings.Cut(f.url, "?")
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// parsePages returns the pages by name, with their templates.
func parsePages(c *Console) (map[string]*page, error) {
	base, err := template.New("layout.html").Funcs(functions()).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}
	parsed := map[string]*page{}
	for _, p := range pages() {
		p.template, err = template.Must(base.Clone()).ParseFS(files, "templates/"+p.name+".html")
		if err != nil {
			return nil, err
		}
		parsed[p.name] = p
	}
	return parsed, nil
}

// titled returns a function that returns a title with the name of what the page is about.
func titled(title string) func(*view) string {
	return func(v *view) string {
		if v.name != "" {
			return shorten(v.name, cutName) + " · " + title
		}
		return title
	}
}

// servePage serves a page, or the stream of its changes.
func (c *Console) servePage(w http.ResponseWriter, r *http.Request, p *page) {
	user := c.sessions.visitor(r)
	if p.name == "sign-in" || user == nil {
		if p.name != "sign-in" && strings.Contains(r.Header.Get("Accept"), "event-stream") {
			http.Error(w, "sign in first", http.StatusUnauthorized)
			return
		}
		if p.name != "sign-in" {
			http.Redirect(w, r, Path+"sign-in?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return
		}
		c.renderSignIn(w, r, http.StatusOK, localPath(r.URL.Query().Get("next")), "")
		return
	}
	v := &view{user: user, name: r.PathValue("name"), query: r.URL.Query(), url: r.URL.RequestURI()}
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		c.hub.serve(w, r, p, v)
		return
	}
	select {
	case c.renders <- struct{}{}:
		defer func() { <-c.renders }()
	case <-r.Context().Done():
		return
	}
	f := c.frame(r.Context(), p, v)
	f.Flash = takeFlash(w, r, c.cfg.TLS)
	if theme, err := r.Cookie("yard_theme"); err == nil && (theme.Value == "light" || theme.Value == "dark") {
		f.Theme = theme.Value
	}
	if target, ok := f.Data.(redirect); ok {
		http.Redirect(w, r, string(target), http.StatusSeeOther)
		return
	}
	status := http.StatusOK
	if f.Problem != nil {
		status = f.Problem.Status()
	}
	c.render(w, r, status, f)
}

// redirect is the data of a page that only leads to another.
type redirect string

// frame loads the data of a page.
func (c *Console) frame(ctx context.Context, p *page, v *view) *frame {
	f := &frame{
		view: v, Page: p, Node: c.cfg.Node, Version: c.cfg.Version, Form: c.placeholder, Nav: navigation,
		SignIn: len(c.cfg.Users) > 0, Next: Path, ctx: ctx,
	}
	status, err := c.status.get(ctx)
	f.Status, f.Notices = &status, notices(&status, err)
	f.Peers, _ = c.peers.get(ctx)
	f.Data, err = p.load(ctx, c, v)
	if err != nil {
		f.Problem = problemOf(err)
	}
	return f
}

// problemOf returns an error as the API describes it.
func problemOf(err error) *api.Error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &api.Error{Code: api.CodeTimeout, Text: "the yard did not answer in time; it may have no quorum"}
	}
	return &api.Error{Code: api.CodeInternal, Text: err.Error()}
}

// notices returns what this node cannot know now.
func notices(s *api.Status, err error) (texts []string) {
	switch {
	case s.Node == "" && err != nil:
		return []string{"This node's status is not known: " + err.Error()}
	case s.Mode == "cluster" && s.Raft.Leader == "":
		texts = append(texts, "No quorum: this node reaches no majority of the members. The page shows what its own ledger had then. What other members run, and all that happened since, is not known here, and nothing can be changed until a majority is connected.")
	case s.Authority.Owner == "" || s.Authority.Expired:
		texts = append(texts, "No member holds the authority: jobs are accepted and run on, but none starts until one is elected.")
	}
	if err != nil {
		texts = append(texts, "Some parts of the yard do not answer: the numbers may be some seconds old.")
	}
	return texts
}

// render sends a whole page.
func (c *Console) render(w http.ResponseWriter, r *http.Request, status int, f *frame) {
	var out bytes.Buffer
	if err := f.Page.template.ExecuteTemplate(&out, "layout.html", f); err != nil {
		c.cfg.Log.Error("console page not rendered", "page", f.Page.name, "err", err)
		http.Error(w, "the page could not be shown; the log of this node has the reason", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept, Cookie")
	w.WriteHeader(status)
	_, _ = w.Write(c.withForm(out.Bytes(), r)) // the browser may be gone
}

// withForm returns a rendered page with the form token of a request.
func (c *Console) withForm(rendered []byte, r *http.Request) []byte {
	return bytes.ReplaceAll(rendered, []byte(c.placeholder), []byte(c.sessions.formToken(r, period(time.Now()))))
}

// renderSignIn sends the page in which users sign in.
func (c *Console) renderSignIn(w http.ResponseWriter, r *http.Request, status int, next, failure string) {
	f := &frame{view: &view{url: Path + "sign-in"}, Page: c.pages["sign-in"], Node: c.cfg.Node, Version: c.cfg.Version, Form: c.placeholder, Next: next}
	if failure != "" {
		f.Flash = &flash{Text: failure, Failed: true}
	}
	if theme, err := r.Cookie("yard_theme"); err == nil && (theme.Value == "light" || theme.Value == "dark") {
		f.Theme = theme.Value
	}
	c.render(w, r, status, f)
}

// flash is a message that the next page shows once.
type flash struct {
	Text   string
	Failed bool
}

// setFlash passes a message to the next page of a browser.
func setFlash(w http.ResponseWriter, secure bool, message flash) {
	message.Text = shorten(message.Text, 1500)
	text, _ := json.Marshal(message) // has no error
	http.SetCookie(w, &http.Cookie{
		Name: flashCookie, Value: base64.RawURLEncoding.EncodeToString(text), Path: Path, MaxAge: 30, HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode,
	})
}

// takeFlash returns the message for this page, nil if there is none.
func takeFlash(w http.ResponseWriter, r *http.Request, secure bool) *flash {
	cookie, err := r.Cookie(flashCookie)
	if err != nil {
		return nil
	}
	http.SetCookie(w, &http.Cookie{Name: flashCookie, Path: Path, MaxAge: -1, HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode})
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	message := &flash{}
	if err != nil || json.Unmarshal(text, message) != nil {
		return nil
	}
	return message
}
