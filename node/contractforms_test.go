package node

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Commands of the runtime contract are answered as the OpenAPI document describes, over
// both routes.
func TestWeb_ContractForms(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var document struct {
		Components struct{ Schemas map[string]schema }
	}
	send(t, n, "GET", "/v1/openapi.json", "").decode(t, http.StatusOK, &document)
	exec := func(path string, command map[string]any) (event map[string]any) {
		t.Helper()
		text, err := json.Marshal(command)
		if err != nil {
			t.Fatal(err)
		}
		send(t, n, "POST", path, string(text)).decode(t, http.StatusOK, &event)
		return event
	}
	values := map[string]any{
		"target": "ops", "channel": "phone", "reason": "no answer", "metadata": map[string]any{"a": 1.5}, "cursor": nil,
	}
	for _, path := range []string{"/v1/exec", ""} {
		for _, f := range api.ContractForms {
			if f.Request == "AcquireAuthority" || f.Request == "RenewAuthority" {
				continue // they are answered so only by the member that holds the lease
			}
			request, id := document.Components.Schemas[f.Request], "r1"+path
			if f.Request == "MarkFailed" { // of a dispatch of its own
				id = "r2" + path
				exec("/v1/exec", map[string]any{"command": "QueueDispatch", "request_id": id, "target": "ops"})
			}
			command := map[string]any{"command": f.Request}
			for name := range request.Properties {
				if value, ok := values[name]; ok {
					command[name] = value
				}
			}
			if _, ok := request.Properties["request_id"]; ok {
				command["request_id"] = id
			}
			if err := request.validate("", command); err != nil {
				t.Errorf("%s: %v", f.Request, err)
			}
			url := path
			if url == "" {
				url = "/v1/exec/" + f.Request
			}
			event := exec(url, command)
			reply := document.Components.Schemas[f.Reply]
			if err := reply.validate("", event); err != nil || event["event"] != f.Reply {
				t.Errorf("%s is answered by %v: %v; want %s", f.Request, event, err, f.Reply)
			}
		}
	}
}
