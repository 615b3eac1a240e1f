// Package node is the roof: it builds the rooms of one node, binds them to
// each other, runs them in order, and answers for the node.
//
// Start: who we are (consensus.Identify: the data directory and the member's
// place in the yard), then messages (cluster), then agreement (consensus),
// then the hands (edge and runner pools under the agent), last the mind
// (scheduler), which runs only while this node leads. Stop goes the other way
// round: the mind hands over, the agent drains, the hands finish what they
// have, and the foundations go last.
//
//	identity ─▶ messages ─▶ agreement ─▶ edge, pools ─▶ agent ─▶ mind, endpoints
//
// Every request is served by any node: reads from its own ledger, commands by
// asking the authority (command.go), jobs by publishing to a lane (door.go).
package node
