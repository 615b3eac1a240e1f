// Package node builds one node out of the other packages: it starts the parts in
// order, connects them, and stops them in order. Package config reads what it needs.
//
// A node starts with its identity (consensus.Identify: the data directory and the
// node's place in the cluster), then the embedded NATS server (cluster), then
// consensus, then the executors (the Overhop edge and the runner pools) with the
// agent that feeds them, and last the scheduler, which runs only on the Raft
// leader. It stops in the reverse order: the authority is transferred, the agent
// drains, the executors finish their dispatches, and NATS and consensus stop last.
//
//	identity ─▶ NATS ─▶ consensus ─▶ edge, pools ─▶ agent ─▶ scheduler, endpoints
//
// Every node serves every request: it reads from its own copy of the ledger, sends
// commands to the authority ([authority.Client]) and publishes jobs to a lane
// ([intake.Intake]).
package node
