package console

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
	"github.com/yardmaster-dev/yardmaster/web/console/tail"
)

// Limits of the console.
const (
	maxRenders   = 32      // pages that are rendered at the same time
	maxForm      = 2 << 20 // bytes of a form
	writeTimeout = 15 * time.Second
)

// Path is the address of the console's first page; all others are below it.
const Path = web.ConsolePath

// Config is what the console shows, and for whom. All fields are required unless they say
// otherwise.
type Config struct {
	Node    string // name of this member
	Version string
	TLS     bool // the listener is encrypted
	// Users may sign in. Anonymous is the user of requests without a session; nil: they
	// have to sign in.
	Users     []session.User
	Anonymous *session.User
	// Secret returns the key of the yard from which sessions are signed, or nil while
	// there is none.
	Secret func() []byte
	// Call sends a request to an endpoint of the API.
	Call calls.Func
	// Applied returns the index of the last entry of this node's ledger, and a channel
	// that is closed when it increases.
	Applied func() (index uint64, changed <-chan struct{})
	// Events reads recorded events.
	Events tail.Source
	// Peers returns where the other members serve their consoles.
	Peers func(context.Context) []pages.Peer
	// Settings are shown as they are.
	Settings []pages.Setting
	Log      *slog.Logger
}

// Console serves the pages. It implements [http.Handler].
type Console struct {
	cfg         Config
	crossOrigin *http.CrossOriginProtection
	mux         *http.ServeMux
	pages       map[string]*page
	renders     chan struct{} // semaphore of maxRenders
	placeholder string        // stands for the form token in rendered pages
	sessions    *session.Sessions
	status      cached[api.Status]
	peers       cached[[]pages.Peer]
	hub         *hub
	env         *pages.Env
}

//go:embed assets templates
var files embed.FS

// New returns a console, whose streams end when ctx ends.
func New(ctx context.Context, cfg Config) (*Console, error) {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails
	c := &Console{
		cfg: cfg, crossOrigin: http.NewCrossOriginProtection(), mux: http.NewServeMux(),
		renders: make(chan struct{}, maxRenders), placeholder: "form-" + hex.EncodeToString(token),
	}
	c.sessions = session.New(session.Config{Path: Path, TLS: cfg.TLS, Users: cfg.Users, Anonymous: cfg.Anonymous, Secret: cfg.Secret})
	c.status = cached[api.Status]{log: cfg.Log, load: c.loadStatus, valid: time.Second}
	c.peers = cached[[]pages.Peer]{log: cfg.Log, load: func(ctx context.Context) ([]pages.Peer, error) { return cfg.Peers(ctx), nil }, valid: 5 * time.Second}
	c.env = &pages.Env{
		Node: cfg.Node, Call: cfg.Call, Status: c.status.get, Tail: tail.New(ctx, cfg.Events, cfg.Log, cfg.Applied), Settings: cfg.Settings,
		Peers: func() []pages.Peer { return c.peers.soon(ctx) },
	}
	c.hub = newHub(ctx, c)
	var err error
	if c.pages, err = parsePages(c); err != nil {
		return nil, err
	}
	for _, p := range c.pages {
		c.mux.HandleFunc("GET "+Path+p.path, func(w http.ResponseWriter, r *http.Request) { c.servePage(w, r, p) })
	}
	c.mux.HandleFunc("POST "+Path+"act/{act}", c.serveAct)
	c.mux.HandleFunc("POST "+Path+"sign-in", c.serveSignIn)
	c.mux.HandleFunc("POST "+Path+"sign-out", c.serveSignOut)
	c.mux.HandleFunc("GET "+Path+"jobs/{id}/{content}", c.serveContent)
	c.mux.HandleFunc("GET "+Path+"complete", c.serveComplete)
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		return nil, err
	}
	static := http.StripPrefix(Path+"assets/", http.FileServerFS(assets))
	c.mux.HandleFunc("GET "+Path+"assets/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public, max-age=300")
		static.ServeHTTP(w, r)
	})
	return c, nil
}

// ServeHTTP implements [http.Handler].
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.setHeaders(w)
	if err := c.crossOrigin.Check(r); err != nil {
		http.Error(w, "requests from pages of other sites are not allowed: "+err.Error(), http.StatusForbidden)
		return
	}
	if c.cfg.Anonymous != nil && !web.TrustedHost(r.Host) && c.sessions.UserOf(r) == nil {
		http.Error(w, "without a sign-in the console serves only addresses, localhost and names without a dot, because a page of another site may use a DNS name that resolves to this node; use its address, or set http.token", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	c.mux.ServeHTTP(w, r)
}

// setHeaders sets the headers of every response.
func (c *Console) setHeaders(w http.ResponseWriter) {
	h := w.Header()
	setPolicy(w, nil)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // fails only for writers of tests
}

// setPolicy sets the content security policy: scripts may also ask the other members that the
// page names whether they answer.
func setPolicy(w http.ResponseWriter, peers []pages.Peer) {
	connect := []string{"'self'"}
	for _, p := range peers {
		if p.URL != "" {
			connect = append(connect, p.URL)
		}
	}
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "+strings.Join(connect, " ")+
		"; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
}

// loadStatus returns the status of the yard as this node sees it.
func (c *Console) loadStatus(ctx context.Context) (s api.Status, err error) {
	s, err = calls.Get[api.Status](ctx, c.cfg.Call, &calls.Call{Endpoint: "status"})
	return s, err
}
