package console

import (
	"bytes"
	"context"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
)

// page is one page of the console.
type page struct {
	path     string // pattern below [Path]
	name     string // of its template
	nav      string // of its entry in the navigation; "" means the page has none
	title    func(v *pages.View) string
	load     pages.Load
	params   []string // of its address
	once     bool     // it is not rendered again while a browser shows it
	template *template.Template
}

// frame is what the templates show.
type frame struct {
	*pages.View
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
	Peers   []pages.Peer
	Theme   string // light or dark; "" means as the browser has it
	SignIn  bool   // there is a session, or could be
	Next    string // page after the sign-in
	failure *failure
	ctx     context.Context
}

// entry is an entry of the navigation.
type entry struct{ Path, Name, Key string }

// navigation lists the entries in order. Key is the letter that follows g.
var navigation = []entry{
	{"", "Overview", "o"}, {"queues", "Queues", "q"}, {"jobs", "Jobs", "j"}, {"operations", "Operations", "b"}, {"workers", "Workers", "w"}, {"dead-letters", "Dead letters", "d"},
	{"cron", "Cron", "c"}, {"limits", "Limits", "l"}, {"members", "Members", "m"}, {"events", "Events", "e"}, {"settings", "Settings", "s"},
}

// Title returns the title of the page.
func (f *frame) Title() string { return f.Page.title(f.View) }

// Heading returns the title of the page as HTML.
func (f *frame) Heading() template.HTML {
	if f.Name != "" {
		title, _, _ := strings.Cut(f.Page.title(&pages.View{}), " ·")
		return template.HTML(template.HTMLEscapeString(title)) + " " + format.Name(f.Name) //nolint:gosec // escaped
	}
	return template.HTML(template.HTMLEscapeString(f.Title())) //nolint:gosec // escaped
}

// PageName returns the name of the page, PageNav its entry in the navigation.
func (f *frame) PageName() string { return f.Page.name }
func (f *frame) PageNav() string  { return f.Page.nav }

// May reports whether the user may use an endpoint.
func (f *frame) May(endpoint string) bool { return f.User != nil && f.User.MayUse(endpoint, "") }

// Param returns a parameter of the page.
func (f *frame) Param(name string) string { return f.Query.Get(name) }

// Live reports whether the page follows the yard.
func (f *frame) Live() bool { return len(f.Nav) > 0 && !f.Page.once }

// With returns the address of the page with another value of a parameter, from the first
// result on.
func (f *frame) With(name, value string) string {
	q := url.Values{}
	for key, values := range f.Query {
		if key != "after" && key != "page" {
			q[key] = values
		}
	}
	q.Set(name, value)
	if value == "" {
		q.Del(name)
	}
	path, _, _ := strings.Cut(f.URL, "?")
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// allPages returns all pages.
func allPages() []*page {
	return []*page{
		{path: "{$}", name: "overview", nav: "", title: titled("Overview"), load: pages.Overview, params: []string{"range"}},
		{path: "queues", name: "queues", nav: "queues", title: titled("Queues"), load: pages.Queues, params: []string{"find", "jobs", "sort", "page"}},
		{path: "queues/{name}/schema", name: "schema", nav: "queues", title: titled("Schema"), load: pages.Schema, params: []string{"function"}, once: true},
		{path: "queues/{name}", name: "queue", nav: "queues", title: titled("Queue"), load: pages.Queue},
		{path: "jobs", name: "jobs", nav: "jobs", title: titled("Jobs"), load: pages.Jobs, params: []string{"q", "after"}},
		{path: "jobs/{name}", name: "job", nav: "jobs", title: titled("Job"), load: pages.Job, params: []string{"queue"}},
		{path: "operations", name: "operations", nav: "operations", title: titled("Operations"), load: pages.Operations, params: []string{"after"}},
		{path: "operations/new", name: "preview", nav: "operations", title: titled("New operation"), load: pages.Preview, params: []string{"action", "query", "params", "to", "keep_attempts"}, once: true},
		{path: "operations/{name}", name: "operation", nav: "operations", title: titled("Operation"), load: pages.Operation},
		{path: "workers", name: "workers", nav: "workers", title: titled("Workers"), load: pages.Workers, params: []string{"node", "queue"}},
		{path: "dead-letters", name: "letters", nav: "dead-letters", title: titled("Dead letters"), load: pages.Letters, params: []string{"queue", "function", "error", "from", "to", "letter", "after"}},
		{path: "cron", name: "cron", nav: "cron", title: titled("Cron"), load: pages.Cron, params: []string{"after"}},
		{path: "cron/{name}", name: "cron-entry", nav: "cron", title: titled("Cron entry"), load: pages.CronEntry},
		{path: "limits", name: "limits", nav: "limits", title: titled("Limits"), load: pages.Limits, params: []string{"after"}},
		{path: "limits/{name}", name: "limit", nav: "limits", title: titled("Limit"), load: pages.Limit},
		{path: "members", name: "members", nav: "members", title: titled("Members"), load: pages.Members},
		{path: "events", name: "events", nav: "events", title: titled("Events"), load: pages.Events, params: []string{"type", "queue", "job", "idle"}},
		{path: "past", name: "past", nav: "", title: titled("The past"), load: pages.Past, params: []string{"at", "ago", "queue"}, once: true},
		{path: "diff", name: "diff", nav: "", title: titled("What has changed"), load: pages.Diff, params: []string{"from", "to"}, once: true},
		{path: "settings", name: "settings", nav: "settings", title: titled("Settings"), load: pages.Settings},
		{path: "{rest...}", name: "unknown", nav: "-", title: titled("No such page"), load: unknownPage, once: true},
		{path: "sign-in", name: "sign-in", nav: "-", title: titled("Sign in"), load: func(context.Context, *pages.Env, *pages.View) (any, error) { return nil, nil }},
	}
}

// unknownPage returns the error for an address of no page.
func unknownPage(_ context.Context, _ *pages.Env, v *pages.View) (any, error) {
	path, _, _ := strings.Cut(v.URL, "?")
	return nil, &api.Error{Code: api.CodeNotFound, Text: "there is no page " + path + "; the navigation lists those that there are"}
}

// ignored returns a notice for the parameters of an address that the page does not have.
func (p *page) ignored(query url.Values) (notices []string) {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if slices.Contains(p.params, name) || p.name == "unknown" {
			continue
		}
		text := fmt.Sprintf("The address has the parameter %q, which this page does not know and ignores.", job.CutText(name, 64))
		if len(p.params) > 0 {
			text += " It knows: " + strings.Join(p.params, ", ") + "."
		}
		notices = append(notices, text)
	}
	return notices[:min(len(notices), maxIgnored)]
}

// maxIgnored is how many unknown parameters a page names.
const maxIgnored = 5

// parsePages returns the pages by name, with their templates.
func parsePages(c *Console) (map[string]*page, error) {
	base, err := template.New("layout.html").Funcs(functions()).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, err
	}
	parsed := map[string]*page{}
	for _, p := range allPages() {
		p.template, err = template.Must(base.Clone()).ParseFS(files, "templates/"+p.name+".html")
		if err != nil {
			return nil, err
		}
		parsed[p.name] = p
	}
	return parsed, nil
}

// titled returns a function that returns a title with the name of what the page is about.
func titled(title string) func(*pages.View) string {
	return func(v *pages.View) string {
		if v.Name != "" {
			return format.Plain(v.Name, format.CutName) + " · " + title
		}
		return title
	}
}

// servePage serves a page, or the stream of its changes.
func (c *Console) servePage(w http.ResponseWriter, r *http.Request, p *page) {
	user := c.sessions.Visitor(r)
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
	v := &pages.View{User: user, Name: r.PathValue("name"), Query: r.URL.Query(), URL: r.URL.RequestURI()}
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") && !p.once {
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
	if f.failure, _ = r.Context().Value(failureKey{}).(*failure); f.failure != nil {
		f.Flash = &flash{Text: "Not done: " + f.failure.err.Text, Failed: true}
	}
	if theme, err := r.Cookie("yard_theme"); err == nil && (theme.Value == "light" || theme.Value == "dark") {
		f.Theme = theme.Value
	}
	if target, ok := f.Data.(pages.Redirect); ok {
		http.Redirect(w, r, string(target), http.StatusSeeOther)
		return
	}
	status := http.StatusOK
	switch {
	case f.failure != nil:
		status = f.failure.err.Status()
	case f.Problem != nil:
		status = f.Problem.Status()
	}
	c.render(w, r, status, f)
}

// frame loads the data of a page.
func (c *Console) frame(ctx context.Context, p *page, v *pages.View) *frame {
	f := &frame{
		View: v, Page: p, Node: c.cfg.Node, Version: c.cfg.Version, Form: c.placeholder, Nav: navigation,
		SignIn: len(c.cfg.Users) > 0, Next: Path, ctx: ctx,
	}
	status, err := c.status.get(ctx)
	f.Status, f.Notices = &status, append(notices(&status, err), p.ignored(v.Query)...)
	f.Peers = c.env.Peers()
	f.Data, err = p.load(ctx, c.env, v)
	if err != nil {
		f.Problem = calls.Problem(err)
	}
	return f
}

// notices returns what this node cannot know now.
func notices(s *api.Status, err error) (texts []string) {
	switch {
	case s.Node == "" && err != nil:
		return []string{"This node's status is not known: " + err.Error()}
	case s.Mode == "cluster" && s.Raft.Leader == "" && s.Raft.Applied == 0:
		texts = append(texts, "No quorum: this node has started again, and reaches no majority of the members. Its ledger is empty until it does, so the page does not show what the yard has: only its index of jobs has those that have ended. Nothing can be changed until a majority is connected.")
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
	setPolicy(w, f.Peers)
	w.WriteHeader(status)
	_, _ = w.Write(c.withForm(out.Bytes(), r)) // the browser may be gone
}

// withForm returns a rendered page with the form token of a request.
func (c *Console) withForm(rendered []byte, r *http.Request) []byte {
	return bytes.ReplaceAll(rendered, []byte(c.placeholder), []byte(c.sessions.FormToken(r)))
}
