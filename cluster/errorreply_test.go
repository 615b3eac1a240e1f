package cluster

import (
	"reflect"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
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
