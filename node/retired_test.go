package node

import (
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cluster"
)

// Requests about replicas of single streams, from members and clients of earlier builds, are
// answered with the step to take instead.
func TestRetired(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, verb := range retiredVerbs {
		_, err := n.fleet.Request(t.Context(), n.cfg.Node.Name, verb, []byte("{}"))
		if refusal := cluster.AsAPIError(err); refusal.Code != "410" || !strings.Contains(refusal.Text, "yardmaster cluster replace") {
			t.Errorf("%s of a member: %v", verb, err)
		}
	}
	send(t, n, "GET", "/v1/cluster/scrub", "").decode(t, 410, nil)
	send(t, n, "POST", "/v1/cluster/members/n1/rebuild", `{"stream":"YARD_JOBS_0"}`).decode(t, 410, nil)
}
