package cluster

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

func TestErrorReply(t *testing.T) {
	sent := &api.Error{Code: api.CodeUnavailable, Text: "lane 0 is full", RetryAfter: 1500 * time.Millisecond, Data: []byte(`{"id":"a<b"}`)}
	m := errorReply("_INBOX.1", "n1", sent)
	const want = `{"error":{"code":"503","message":"lane 0 is full","retry_after_ms":1500,"data":{"id":"a<b"}}}`
	if string(m.Data) != want {
		t.Errorf("body %s, want %s", m.Data, want)
	}
	if got := parseErrorReply(m); !reflect.DeepEqual(got, sent) {
		t.Errorf("parsed %+v, want %+v", got, sent)
	}
	m.Data = []byte("not JSON")
	if got := parseErrorReply(m); got == nil || got.Text != sent.Text || got.Data != nil {
		t.Errorf("without a body: %+v", got)
	}
}

// TestAsAPIError_Reasons checks the errors whose details have a reason for programs.
func TestAsAPIError_Reasons(t *testing.T) {
	for _, c := range []struct {
		err        error
		code, data string
	}{
		{&job.RemovedError{ID: job.ID{15: 7}, Kept: time.Minute}, api.CodeConflict, `{"id":"00000000-0000-0000-0000-000000000007","reason":"duplicate_of_removed"}`},
		{fmt.Errorf("add queue mail: %w", job.ErrTooManyQueues), api.CodeConflict, `{"reason":"too_many_queues"}`},
		{job.ErrQueueExists, api.CodeConflict, ""},
	} {
		if got := AsAPIError(c.err); got.Code != c.code || string(got.Data) != c.data || got.Text != c.err.Error() {
			t.Errorf("%v: %+v with %s, want %s with %s", c.err, got, got.Data, c.code, c.data)
		}
	}
}
