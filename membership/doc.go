// Package membership changes who belongs to a yard, one member at a time.
//
// Three lists have to say the same: Raft's voters, JetStream's servers with the
// copies of streams that lie on them, and the ledger's roll. The roll leads: a
// change is first committed there, and a [Keeper], which runs in the authority's
// tenure, brings the others in step, each step by what it finds and none by
// what it remembers. So a change goes on under whatever authority comes next.
//
//	joining ─▶ routes ─▶ JetStream current ─▶ log caught up ─▶ vouched ─▶ vote ─▶ present
//	leaving ─▶ jobs finished ─▶ copies elsewhere ─▶ no vote ─▶ out of JetStream ─▶ node ended ─▶ copies whole ─▶ out
//
// A replacement is both: the new seat joins, then the old one leaves. A member
// that is dead leaves without the first two steps.
//
// A change begins only while all others are well, see [Keeper.Begin].
package membership
