package health

import (
	"cmp"
	"slices"
	"time"
)

// When and how often an unfit holder transfers the authority.
const (
	unfitGrace      = 5 * time.Second // unfit for this long, before a transfer
	routesGrace     = 2 * time.Second // the same without routes, which are only closed after 6 s
	minCooldown     = time.Minute     // between two transfers
	maxCooldown     = 15 * time.Minute
	maxContactAge   = 500 * time.Millisecond // of the successor with the leader
	maxSuccessorLag = 128                    // entries that the successor may lack
)

// transferPolicy decides when a node that holds the authority should transfer it,
// and to which member. The successor reported itself fit, so the authority should
// not come back at once; if it does, the cooldown between two transfers doubles.
type transferPolicy struct {
	unfitSince   time.Time     // since when the node has been unfit; zero: it is fit
	lastTransfer time.Time     // time of the last transfer
	cooldown     time.Duration // minimum time until the next one
}

// successor returns the member to which this node should transfer the authority now,
// "" for none. It must be called after each check, with this node's status and the
// recent statuses of the other members; holdsAuthority reports whether this node holds
// the authority. It counts a result other than "" as a transfer.
func (p *transferPolicy) successor(now time.Time, holdsAuthority bool, own *NodeStatus, others []NodeStatus) string {
	if own.Fit() {
		p.unfitSince = time.Time{}
		if !p.lastTransfer.IsZero() && now.Sub(p.lastTransfer) > 2*p.cooldown {
			p.cooldown = 0 // it has been fit for long
		}
		return ""
	}
	if p.unfitSince.IsZero() {
		p.unfitSince = now
	}
	wait := unfitGrace
	if own.has(Routes) {
		wait = routesGrace
	}
	inCooldown := !p.lastTransfer.IsZero() && now.Sub(p.lastTransfer) < p.cooldown
	if !holdsAuthority || now.Sub(p.unfitSince) < wait || inCooldown {
		return ""
	}
	candidates := slices.DeleteFunc(slices.Clone(others), func(s NodeStatus) bool { return !s.canSucceed(own) })
	if len(candidates) == 0 {
		return ""
	}
	best := slices.MinFunc(candidates, func(a, b NodeStatus) int {
		return cmp.Or(cmp.Compare(a.DiskLevel, b.DiskLevel), cmp.Compare(b.Last, a.Last), cmp.Compare(a.Node, b.Node))
	})
	p.lastTransfer, p.cooldown = now, min(max(minCooldown, 2*p.cooldown), maxCooldown)
	return best.Node
}

// canSucceed reports whether a member is fit and follows the present leader
// closely. It must not have much to catch up, because Raft accepts no proposals during a
// transfer.
func (s *NodeStatus) canSucceed(leader *NodeStatus) bool {
	return s.Fit() && s.Leader == leader.Node && s.Contact >= 0 && s.Contact <= maxContactAge && s.Last+maxSuccessorLag >= leader.Last
}
