package console

import (
	"net/http"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/web/console/format"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
)

// renderSignIn sends the page in which users sign in.
func (c *Console) renderSignIn(w http.ResponseWriter, r *http.Request, status int, next, failure string) {
	f := &frame{View: &pages.View{URL: Path + "sign-in"}, Page: c.pages["sign-in"], Node: c.cfg.Node, Version: c.cfg.Version, Form: c.placeholder, Next: next}
	if failure != "" {
		f.Flash = &flash{Text: failure, Failed: true}
	}
	if theme, err := r.Cookie("yard_theme"); err == nil && (theme.Value == "light" || theme.Value == "dark") {
		f.Theme = theme.Value
	}
	c.render(w, r, status, f)
}

// serveSignIn handles the form of the page sign-in.
func (c *Console) serveSignIn(w http.ResponseWriter, r *http.Request) {
	next := localPath(r.PostFormValue("next"))
	if !c.sessions.MayTry(r) {
		w.Header().Set("Retry-After", "60")
		c.renderSignIn(w, r, http.StatusTooManyRequests, next, "Too many failed sign-ins from this address. Wait a minute, then try again.")
		return
	}
	u := c.sessions.Find(strings.TrimSpace(r.PostFormValue("token")), r.PostFormValue("user"), r.PostFormValue("password"))
	if u == nil {
		c.sessions.Fail(r)
		c.cfg.Log.Warn("console sign-in refused", "user", format.Shorten(r.PostFormValue("user"), 64), "remote", r.RemoteAddr)
		c.renderSignIn(w, r, http.StatusUnauthorized, next, "That is not a token of http.users or http.token, nor a name and password of nats.users.")
		return
	}
	http.SetCookie(w, c.sessions.Begin(u, time.Now()))
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// serveSignOut ends the session of a browser, also from a page of an earlier session of it. It
// needs no form token: [Console.ServeHTTP] refuses requests from pages of other sites.
func (c *Console) serveSignOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, c.sessions.End())
	http.Redirect(w, r, Path+"sign-in", http.StatusSeeOther)
}

// localPath returns path if it is one of the console's, and otherwise the first page's.
func localPath(path string) string {
	if strings.HasPrefix(path, Path) && !strings.ContainsAny(path, "\\\r\n") && !strings.Contains(path, "//") {
		return path
	}
	return Path
}
