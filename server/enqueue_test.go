package server

import (
	"encoding/json"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// TestEncodeReply checks that a reply is what encoding/json writes.
func TestEncodeReply(t *testing.T) {
	for _, queue := range []string{"mail", "", "<a> \"b\"\u2028\xff"} {
		for n := range 4 {
			reply := api.EnqueueReply{ID: job.ID{1, 15: 2}, Queue: queue, Duplicate: n&1 != 0, Debounced: n&2 != 0}
			want, err := json.Marshal(reply)
			if got := encodeReply(&reply); err != nil || string(got) != string(want) {
				t.Errorf("%s, want %s, %v", got, want, err)
			}
		}
	}
}
