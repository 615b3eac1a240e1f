package console

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/yardmaster-dev/yardmaster/web/console/pages"
)

// serveComplete sends what may be written at a position of the search.
func (c *Console) serveComplete(w http.ResponseWriter, r *http.Request) {
	user := c.sessions.Visitor(r)
	if user == nil {
		http.Error(w, "sign in first", http.StatusUnauthorized)
		return
	}
	text := r.URL.Query().Get("q")
	cursor, err := strconv.Atoi(r.URL.Query().Get("cursor"))
	if err != nil {
		cursor = len(text)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(pages.Complete(r.Context(), c.env, &pages.View{User: user}, text, cursor)) // the browser may be gone
}
