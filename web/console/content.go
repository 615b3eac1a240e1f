package console

import (
	"fmt"
	"net/http"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
)

// serveContent sends the params or the result of a job as a file.
func (c *Console) serveContent(w http.ResponseWriter, r *http.Request) {
	user, content := c.sessions.Visitor(r), r.PathValue("content")
	if user == nil {
		http.Redirect(w, r, Path+"sign-in", http.StatusSeeOther)
		return
	}
	if content != "params" && content != "result" {
		http.NotFound(w, r)
		return
	}
	request := &api.ContentRequest{ID: r.PathValue("id")}
	for begun := false; ; begun = true {
		part, err := calls.Ask[api.Content](r.Context(), c.cfg.Call, user, "job-"+content, request)
		switch {
		case err != nil && begun:
			panic(http.ErrAbortHandler) // so that no one takes the part for the whole
		case err != nil:
			e := calls.Problem(err)
			http.Error(w, e.Text, e.Status())
			return
		case !begun:
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s-%s.%s"`, part.ID, content, part.Encoding))
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // fails only for writers of tests
		if _, err := w.Write(part.Data); err != nil {
			return
		}
		request.Offset = part.Offset + int64(len(part.Data))
		if len(part.Data) == 0 || request.Offset >= part.Size {
			return
		}
	}
}
