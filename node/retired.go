package node

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/cluster"
)

// retiredVerbs are requests about replicas of single streams that members of earlier
// builds with this protocol level send.
var retiredVerbs = []string{"copy", "scrub", "rebuild", "check", "spares"}

// errRetired is the answer to every request about replicas of single streams.
var errRetired = &cluster.APIError{
	Code: "410",
	Text: "replicas of single streams are neither compared nor rebuilt any more; where 'yardmaster status' names a damaged or lagging member, replace it: 'yardmaster cluster replace <member>'",
}

// serveRetired answers a member of an earlier build with errRetired.
func serveRetired(context.Context, []byte) ([]byte, error) { return nil, errRetired }

// handleRetired answers a client of an earlier build with errRetired.
func (n *Node) handleRetired(context.Context, *cluster.Request) (any, error) { return nil, errRetired }

// retiredQuestion is the request body of clients of earlier builds.
type retiredQuestion struct {
	Name   string `json:"name"`
	Stream string `json:"stream"`
}
