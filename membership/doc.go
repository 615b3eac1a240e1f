// Package membership changes the members of a yard, one at a time.
//
// Three lists must agree: Raft's voters, JetStream's servers with their replicas
// of streams, and the membership in the ledger. The ledger's membership is
// authoritative. A change is first committed there; then a [Reconciler], which
// runs on the authority's node, adjusts the other two. Each step depends only on
// what the reconciler observes, not on what it remembers, so a change continues
// under the next authority.
//
//	joining ─▶ routes ─▶ JetStream current ─▶ log caught up ─▶ promoted ─▶ vote ─▶ present
//	leaving ─▶ jobs finished ─▶ replicas moved ─▶ no vote ─▶ out of JetStream ─▶ node stopped ─▶ replicas complete ─▶ out
//
// A replacement is both: the new member joins, then the old one leaves. A member
// that is dead leaves without the first two steps.
//
// A change begins only while all other members are healthy, see
// [Reconciler.Begin].
//
// On every node a [Member] applies the membership to the node itself, a [Transferer]
// hands the authority to another member, and a [Drainer] moves away work, clients and
// leadership when the node is drained, removed or stopped.
package membership
