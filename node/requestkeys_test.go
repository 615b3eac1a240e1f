package node

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// TestEndpoints_WrongKeys checks of every endpoint that takes a request in JSON that an unknown key is
// refused with the keys that this endpoint takes, and that a key that it needs is named if it is missing.
func TestEndpoints_WrongKeys(t *testing.T) {
	n := startSingleNode(t, func(*config.Config) {})
	bound := slices.Concat(n.endpoints(), n.binding().Bind(api.BackupEndpoints, backupHandlers(n.backups)))
	asked := 0
	ask := func(e cluster.Endpoint, body string) *api.Error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		reply, err := e.Handle(ctx, cluster.NewRequest([]byte(body), "mail", func(string) string { return "" }, nil))
		if err == nil {
			t.Errorf("%s takes %s: %s", e.Name, body, reply)
			return &api.Error{}
		}
		return cluster.AsAPIError(err)
	}
	for _, e := range bound {
		if e.Request == nil || e.Handle == nil || reflect.TypeOf(e.Request).Kind() != reflect.Struct {
			continue
		}
		asked++
		needed := e.NeededKeys()
		switch {
		case e.Name == "restore-push", strings.HasPrefix(e.Name, "exec"): // a chunk; the contract has its own errors
			continue
		case strings.HasPrefix(e.Name, "cluster-"): // a yard of one refuses them before
			continue
		}
		refused := ask(e, `{"nonsense_key":1}`)
		if refused.Code != api.CodeInvalid || !strings.Contains(refused.Text, `no key "nonsense_key"`) {
			t.Errorf("%s with an unknown key: %s %s", e.Name, refused.Code, refused.Text)
		}
		for _, key := range needed {
			if !slices.Contains(strings.FieldsFunc(refused.Text, func(r rune) bool { return r == ' ' || r == ',' || r == ';' }), key) &&
				!strings.Contains(refused.Text, " "+key+".") {
				t.Errorf("%s does not say that it takes %s: %s", e.Name, key, refused.Text)
			}
		}
		if len(needed) == 0 {
			continue
		}
		refused = ask(e, `{}`)
		if refused.Code != api.CodeInvalid || !slices.ContainsFunc(needed, func(key string) bool { return strings.Contains(refused.Text, strconv.Quote(key)) }) {
			t.Errorf("%s without %v: %s %s", e.Name, needed, refused.Code, refused.Text)
		}
	}
	if asked < 40 {
		t.Errorf("%d endpoints were asked, want more", asked)
	}
	for _, e := range bound {
		if e.Name == "queue-show" {
			if refused := ask(e, `{"queue":"mail"}`); refused.Text != `request has no key "queue"; there is only name` {
				t.Errorf("queue.show of {\"queue\":…}: %s", refused.Text)
			}
		}
	}
}
