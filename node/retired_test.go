package node

import (
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Requests about replicas of single streams, from clients of earlier builds, are
// answered with the step to take instead.
func TestRetired(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, reply := range []httpReply{
		send(t, n, "GET", "/v1/cluster/scrub", ""),
		send(t, n, "POST", "/v1/cluster/members/n1/rebuild", `{"stream":"YARD_JOBS_0"}`),
	} {
		var refused api.ErrorReply
		reply.decode(t, 410, &refused)
		if text := refused.Error.Message; !strings.Contains(text, "yardmaster cluster replace") {
			t.Errorf("refused with %q", text)
		}
	}
}
