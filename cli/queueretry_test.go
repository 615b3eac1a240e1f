package cli

import (
	"strings"
	"testing"
)

// TestQueueRetries checks which request the flags of a queue's retry rules make, and how the
// rules are shown.
func TestQueueRetries(t *testing.T) {
	queue := strings.Replace(queueJSON, `"counts"`, `"retry":[{"function":"","backoff_ms":10000,"max_backoff_ms":3600000,"jitter":0,"retry_on":["http_503","timeout"]},`+
		`{"function":"charge","max_attempts":3,"discard_on":["invalid_card"]}],"counts"`, 1)
	var asked string
	reply := func(body []byte) ([]byte, error) {
		asked = string(body)
		return []byte(queue), nil
	}
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.queue.show": queue, "yard.api.v1.queue.set": reply, "yard.api.v1.queue.add": reply})
	for line, want := range map[string]string{
		"queue set mail --backoff 10s --max-backoff 1h --jitter 0 --retry-on http_503,timeout": `{"name":"mail","retry":[{"function":"","backoff_ms":10000,"max_backoff_ms":3600000,"jitter":0,"retry_on":["http_503","timeout"]}]}`,
		"queue set mail --function charge --attempts 3 --discard-on invalid_card":              `{"name":"mail","retry":[{"function":"charge","max_attempts":3,"discard_on":["invalid_card"]}]}`,
		"queue set mail --function charge --attempts none --backoff none --discard-on none":    `{"name":"mail","retry":[{"function":"charge","max_attempts":null,"backoff_ms":null,"discard_on":null}]}`,
		"queue set mail --retry none":                              `{"name":"mail","retry":null}`,
		"queue set mail --retry none --function charge":            `{"name":"mail","retry":[{"function":"charge","remove":true}]}`,
		"queue set mail --retry none --function charge --jitter 5": `{"name":"mail","retry":[{"function":"charge","remove":true,"jitter":5}]}`,
		"queue add mail --backoff 1m":                              `{"name":"mail","retry":[{"function":"","backoff_ms":60000}]}`,
	} {
		if got := f.run(t, strings.Fields(line)...); got.code != 0 {
			t.Errorf("%s: %+v", line, got)
		}
		sameJSON(t, asked, want)
	}
	const table = "\nRETRIES OF  ATTEMPTS  BACKOFF  MAX BACKOFF  JITTER  RETRY ON          DISCARD ON\n" +
		"*           -         10s      1h           0%      http_503,timeout  -\n" +
		"charge      3         -        -            -       -                 invalid_card\n"
	if got := f.run(t, "queue", "show", "mail"); !strings.Contains(got.out, table) {
		t.Errorf("shown as\n%s\nwant\n%s", got.out, table)
	}
}
