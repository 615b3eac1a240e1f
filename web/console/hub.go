package console

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
)

// Limits of the streams of changes.
const (
	maxStreams   = 1024
	pauseBetween = time.Second      // between two renderings of a page
	pauseIdle    = 5 * time.Second  // after which a page is rendered although the ledger has not changed
	pausePing    = 15 * time.Second // after which a stream without changes sends a line
	slowest      = 10               // a page that takes long is rendered 1/slowest of the time, and at least each pauseIdle
)

// hub renders pages again while browsers show them: one rendering for all streams of the
// same page that is shown to users with the same permissions. A stream sends the latest
// rendering only, so that a slow browser costs no memory.
type hub struct {
	console *Console
	ctx     context.Context

	mu      crash.Mutex
	topics  map[string]*topic
	streams int
}

// topic is a page that browsers show.
type topic struct {
	page    *page
	view    *pages.View
	cancel  context.CancelFunc
	streams int // guarded by hub.mu

	mu      crash.Mutex
	latest  []byte
	changed chan struct{} // closed when latest changes
}

func newHub(ctx context.Context, c *Console) *hub {
	return &hub{console: c, ctx: ctx, topics: map[string]*topic{}}
}

// join returns the topic of a view, which it starts if it does not run, and a function that
// leaves it. It returns nil if there are too many streams.
func (h *hub) join(p *page, v *pages.View) (t *topic, leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams >= maxStreams {
		return nil, nil
	}
	h.streams++
	key := v.User.Kind() + " " + v.User.Role + " " + v.User.Name + " " + v.URL
	if v.User.Role != "" { // users with a role have its permissions
		key = "role " + v.User.Role + " " + v.URL
	}
	t = h.topics[key]
	if t == nil {
		ctx, cancel := context.WithCancel(h.ctx)
		t = &topic{page: p, view: v, cancel: cancel, changed: make(chan struct{})}
		h.topics[key] = t
		go h.run(ctx, t)
	}
	t.streams++
	return t, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.streams--
		if t.streams--; t.streams == 0 {
			delete(h.topics, key)
			t.cancel()
		}
	}
}

// run renders a topic's page until ctx ends, when the ledger has changed or pauseIdle is
// over. The pause bounds how much of the processor renderings take. Most of a long rendering may
// be a wait for members that do not answer, so no pause is longer than pauseIdle.
func (h *hub) run(ctx context.Context, t *topic) {
	for ctx.Err() == nil {
		_, changed := h.console.cfg.Applied()
		began := time.Now()
		t.set(h.render(ctx, t))
		pause := min(max(pauseBetween, slowest*time.Since(began)), pauseIdle)
		if !sleep(ctx, pause) {
			return
		}
		idle := time.NewTimer(pauseIdle - pause)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-idle.C:
		}
		idle.Stop()
	}
}

// sleep waits, and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// render returns the main part of a topic's page, nil if it cannot be rendered.
func (h *hub) render(ctx context.Context, t *topic) (rendered []byte) {
	defer crash.Contain(h.console.cfg.Log, crash.HTTP, nil)
	select {
	case h.console.renders <- struct{}{}:
		defer func() { <-h.console.renders }()
	case <-ctx.Done():
		return nil
	}
	var out bytes.Buffer
	if err := t.page.template.ExecuteTemplate(&out, "live", h.console.frame(ctx, t.page, t.view)); err != nil {
		h.console.cfg.Log.Error("console page not rendered", "page", t.page.name, "err", err)
		return nil
	}
	return out.Bytes()
}

// set makes a rendering the latest, unless it is the same or nil.
func (t *topic) set(rendered []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rendered == nil || bytes.Equal(rendered, t.latest) {
		return
	}
	t.latest = rendered
	close(t.changed)
	t.changed = make(chan struct{})
}

// get returns the latest rendering, nil before the first, and a channel that is closed
// at the next one.
func (t *topic) get() (latest []byte, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.latest, t.changed
}

// serve sends the renderings of a page until the browser or the node goes away, or the
// session ends.
func (h *hub) serve(w http.ResponseWriter, r *http.Request, p *page, v *pages.View) {
	t, leave := h.join(p, v)
	if t == nil {
		http.Error(w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	control := http.NewResponseController(w)
	_ = control.Flush() // so that the browser sees the stream before its first event
	ping := time.NewTicker(pausePing)
	defer ping.Stop()
	var sent []byte
	for {
		latest, changed := t.get()
		if latest != nil && !bytes.Equal(latest, sent) {
			if !send(w, control, "main", h.console.withForm(latest, r)) {
				return
			}
			sent = latest
		}
		select {
		case <-changed:
		case <-ping.C:
			if h.console.sessions.Visitor(r) == nil || !send(w, control, "ping", nil) {
				return
			}
		case <-r.Context().Done():
			return
		case <-h.ctx.Done():
			return
		}
	}
}

// send sends an event and reports whether the browser has taken it within writeTimeout.
func send(w http.ResponseWriter, control *http.ResponseController, name string, data []byte) bool {
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails only for writers of tests
	var out bytes.Buffer
	fmt.Fprintf(&out, "event: %s\n", name)
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		fmt.Fprintf(&out, "data: %s\n", bytes.TrimSuffix(line, []byte("\r")))
	}
	out.WriteByte('\n')
	if _, err := w.Write(out.Bytes()); err != nil {
		return false
	}
	return control.Flush() == nil
}
