package membership

import (
	"errors"
	"testing"
)

// View does not show that members have no streams when nothing is known of the streams,
// as right after the death of JetStream's leader.
func TestView_UncountedStreams(t *testing.T) {
	f, r := newFakeCluster(t)
	if v := r.View(t.Context()); v.Uncounted != "" || v.Members[0].Streams != 1 {
		t.Errorf("with all streams: %+v", v)
	}
	f.streams = append(f.streams, StreamReplicas{Stream: "YARD_DLQ"})
	if v := r.View(t.Context()); v.Uncounted != "YARD_DLQ: no leader answers" || v.Members[0].Streams != 1 {
		t.Errorf("with a stream without a leader: %+v", v)
	}
	f.streamsErr = errors.New("no answer within 1s")
	if v := r.View(t.Context()); v.Uncounted != "all streams: no answer within 1s" {
		t.Errorf("without a list of streams: %+v", v)
	}
}
