package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// hostile is a text that a page must show and not obey.
const hostile = "<script>document.title='taken'</script>\u202egpj.exe\u0007 \"quoted\""

// send sends a request of the operator to the API of a node and returns the reply.
func send(method, path string, body any) (map[string]any, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, node := range shared.yard.Nodes {
		r, err := http.NewRequestWithContext(ctx, method, "http://"+node.HTTP+path, bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+annToken)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			continue // the node was killed
		}
		defer response.Body.Close()
		reply, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		exists := method == "PUT" && response.StatusCode == http.StatusConflict // the worker has made the queue
		if response.StatusCode >= 300 && !exists {
			return nil, fmt.Errorf("%s %s: %s %s", method, path, response.Status, reply)
		}
		var object map[string]any
		return object, json.Unmarshal(reply, &object)
	}
	return nil, fmt.Errorf("%s %s: no node answers", method, path)
}

// fill makes queues, limits, cron entries, jobs that wait, run, fail and have ended.
func fill() error {
	type object = map[string]any
	for _, r := range []struct {
		method, path string
		body         any
	}{
		{"PUT", "/v1/queues/mail", object{}}, {"PUT", "/v1/queues/webhooks", object{}}, {"PUT", "/v1/queues/reports", object{}},
		{"PATCH", "/v1/limits/smtp", object{"total": 1, "per_key": 1}},
		{"PATCH", "/v1/queues/mail", object{"limits": []string{"smtp"}, "key": "params.customer", "key_optional": true, "fair": true, "weights": object{strings.ReplaceAll(hostile, "\u0007", ""): 3}}},
		{"PUT", "/v1/cron/nightly", object{"schedule": "0 0 3 * * *", "queue": "reports", "job": object{"function": "build"}}},
		{"POST", "/v1/queues/mail/jobs", object{"id": "hostile", "function": hostile, "params": object{hostile: []any{hostile, nil, 1.5}, "customer": "<b>&\u202e"}, "tags": []string{hostile}, "meta": object{"note": hostile}}},
		{"POST", "/v1/queues/reports/jobs", object{"id": "large", "function": "build", "params": object{"text": strings.Repeat("x", 1<<20-1000)}}},
		{"POST", "/v1/queues/webhooks/jobs", object{"id": "fails", "function": "fail", "params": object{"final": true}}},
		{"POST", "/v1/queues/webhooks/jobs", object{"id": "echo", "function": "echo", "params": object{"customer": "acme"}}},
	} {
		if _, err := send(r.method, r.path, r.body); err != nil {
			return err
		}
	}
	for i := range 6 {
		if _, err := send("POST", "/v1/queues/reports/jobs", object{"function": "build", "params": object{"month": i}}); err != nil {
			return err
		}
		customer := []string{"acme", "globex", "initech"}[i%3]
		if _, err := send("POST", "/v1/queues/mail/jobs", object{"function": "sleep", "params": object{"ms": 20000, "customer": customer}}); err != nil {
			return err
		}
		if _, err := send("POST", "/v1/queues/webhooks/jobs", object{"function": "fail", "params": object{"final": true, "customer": customer}}); err != nil {
			return err
		}
	}
	_, err := send("GET", "/v1/jobs/webhooks:fails/wait?timeout=20s", nil)
	return err
}
