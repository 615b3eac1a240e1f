// Package chronicle keeps what the state of a yard at any point can be rebuilt from, rebuilds it,
// and checks the ledger with it.
//
// The authority folds history with package timeline, which shares no code with the ledger, and
// stores its state from time to time in YARD_STATE: a base. A state is rebuilt from the last base
// before its point and the events after it. Whenever the authority stores a base, it compares
// the state with its ledger: a difference means that one of the two programs is wrong, and makes
// the node unready.
package chronicle
