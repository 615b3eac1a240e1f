package node

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/node/config"
)

// Over HTTP each role may do what it may over NATS.
func TestWeb_Roles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "eye")
	if err := os.WriteFile(file, []byte("t-eye\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startSingleNode(t, func(c *config.Config) {
		c.HTTP.Token = "t-token"
		c.HTTP.Users = []config.HTTPUser{
			{Name: "shop", Role: "producer", Token: "t-shop"},
			{Name: "mailer", Role: "producer", Token: "t-mailer", Queues: []string{"mail"}},
			{Name: "marker", Role: "worker", Token: "t-marker"},
			{Name: "sorter", Role: "worker", Token: "t-sorter", Queues: []string{"mail"}},
			{Name: "eye", Role: "observer", TokenFile: file},
			{Name: "chief", Role: "admin", Token: "t-chief"},
		}
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	users := []string{"shop", "mailer", "marker", "sorter", "eye", "chief", "token"}
	for _, c := range []struct{ request, body, allowed string }{
		{"POST /v1/queues/mail/jobs", `{"function":"send","id":"o1","params":{"n":1}}`, "shop mailer chief token"},
		{"POST /v1/queues/other/jobs", `{"function":"send","id":"o2"}`, "shop chief token"},
		{"POST /v1/jobs/bulk", `{"queue":"mail","jobs":[{"function":"send","id":"o3"}]}`, "shop mailer chief token"},
		{"GET /v1/jobs/mail:o1", "", "shop mailer marker sorter eye chief token"},
		{"GET /v1/jobs/mail:o1/params", "", "shop mailer marker sorter eye chief token"},
		{"GET /v1/queues", "", "eye chief token"},
		{"GET /v1/queues/mail/explain", "", "eye chief token"},
		{"GET /v1/dlq", "", "eye chief token"},
		{"GET /v1/status", "", "marker sorter eye chief token"},
		{"GET /v1/snapshot", "", "marker sorter eye chief token"},
		{"GET /metrics", "", "eye chief token"},
		{"GET /v1/openapi.json", "", "shop mailer marker sorter eye chief token"},
		{"POST /v1/exec/QueueDispatch", `{"command":"QueueDispatch","request_id":"r1","target":"ops"}`, "marker sorter chief token"},
		{"POST /v1/exec", `{"command":"QueueDispatch","request_id":"r1","target":"ops"}`, "chief token"},
		{"PUT /v1/queues/mail2", "{}", ""}, // "": an operator's only, whatever its answer
		{"PATCH /v1/jobs/mail:o1", `{"priority":7}`, ""},
		{"PATCH /v1/queues/mail/jobs", `{"all":true,"priority":7}`, ""},
		{"DELETE /v1/queues/none", "", ""},
		{"POST /v1/cluster/transfer", "{}", ""},
		{"POST /v1/backup", "", ""},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		for _, user := range users {
			allowed := strings.Contains(" "+c.allowed+" ", " "+user+" ")
			operator := c.allowed == "" && (user == "chief" || user == "token")
			got := send(t, n, method, path, c.body, "Authorization: Bearer t-"+user)
			switch {
			case operator: // whether it succeeds depends on the state
				if got.status == http.StatusForbidden || got.status == http.StatusUnauthorized {
					t.Errorf("%s of %s: %s", c.request, user, got)
				}
			case allowed && got.status/100 != 2:
				t.Errorf("%s of %s: %s", c.request, user, got)
			case !allowed && (got.status != http.StatusForbidden || !strings.Contains(string(got.body), "user "+user+" has the role ")):
				t.Errorf("%s of %s: %s, want 403", c.request, user, got)
			}
		}
		for _, head := range []string{"X: ", "Authorization: Bearer t-nobody", "Authorization: Basic t-chief"} {
			if got := send(t, n, method, path, c.body, head); got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %q: %s, want 401", c.request, head, got)
			}
		}
	}
}

// Requests without a token have the role http.anonymous; a wrong token is refused all the
// same.
func TestWeb_Anonymous(t *testing.T) {
	n := startSingleNode(t, func(c *config.Config) {
		c.HTTP.Anonymous = "observer"
		c.HTTP.Users = []config.HTTPUser{{Name: "chief", Role: "admin", Token: "t-chief"}}
	})
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, c := range []struct {
		method, path, head string
		want               int
	}{
		{"GET", "/v1/queues", "X: ", 200}, {"GET", "/metrics", "X: ", 200}, {"PUT", "/v1/queues/mail", "X: ", 403},
		{"PUT", "/v1/queues/mail", "Authorization: Bearer t-chief", 200}, {"GET", "/v1/queues", "Authorization: Bearer t", 401},
	} {
		if got := send(t, n, c.method, c.path, "", c.head); got.status != c.want {
			t.Errorf("%s %s with %q: %s, want %d", c.method, c.path, c.head, got, c.want)
		}
	}
}
