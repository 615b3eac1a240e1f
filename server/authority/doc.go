// Package authority is how a node uses the authority, which may be itself or another
// node: [Client] commits commands and confirms that the local ledger is current, [Watch]
// follows who holds the authority.
package authority
