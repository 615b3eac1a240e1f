package node

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
)

// errRetired is the answer to every request about replicas of single streams.
var errRetired = &api.Error{
	Code: api.CodeGone,
	Text: "replicas of single streams are neither compared nor rebuilt any more; where 'yardmaster status' names a damaged or lagging member, replace it: 'yardmaster cluster replace <member>'",
}

// handleRetired answers a client of an earlier build with errRetired.
func (n *Node) handleRetired(context.Context, *cluster.Request) (any, error) { return nil, errRetired }
