package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/yardmaster-dev/yardmaster/web/console/acts"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
)

// actTimeout bounds an act; the yard goes on with one that takes longer.
const actTimeout = 25 * time.Second

// serveAct handles the form of an act: it does it, and leads back to the page, or shows the
// page again with what was refused.
func (c *Console) serveAct(w http.ResponseWriter, r *http.Request) {
	user := c.sessions.Visitor(r)
	act := r.PathValue("act")
	switch err := r.ParseForm(); {
	case err != nil:
		http.Error(w, "the form cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	case user == nil:
		http.Redirect(w, r, Path+"sign-in", http.StatusSeeOther)
		return
	case !acts.Known(act):
		http.Error(w, "there is no such act", http.StatusNotFound)
		return
	}
	back := localPath(r.PostForm.Get("back"))
	if !c.sessions.CheckForm(r) {
		setFlash(w, c.cfg.TLS, flash{"Nothing was done: the page was too old, or of another session. Try again from this one.", true})
		http.Redirect(w, r, back, http.StatusSeeOther)
		return
	}
	a := &acts.Act{Name: act, Call: c.cfg.Call, User: user, Actor: cmp.Or(user.Name, r.RemoteAddr), Form: r.PostForm}
	ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(actTimeout + writeTimeout)) // fails only for writers of tests
	message, err := a.Do(ctx)
	if err != nil {
		failed := &failure{act: act, form: r.PostForm, err: calls.Problem(err)}
		if atField, ok := errors.AsType[*acts.FieldError](err); ok {
			failed.field = atField.Field
		}
		c.serveFailure(w, r, back, failed)
		return
	}
	setFlash(w, c.cfg.TLS, flash{Text: message})
	if to := a.Form.Get("then"); to != "" {
		back = localPath(to)
	}
	http.Redirect(w, r, back, http.StatusSeeOther)
}
