// Package clustertest runs whole clusters in one process for tests: real nodes
// with real NATS, Raft and disks, connected through links that a test can break.
//
//	c := clustertest.Start(t, 3)
//	c.WaitAuthority().Isolate()
//	c.WaitAuthority() // of another node
//
// When the test ends, the cluster is healed and verified: there must be one
// authority, the same ledger on every node, and, after the nodes have stopped, no
// goroutine left. Nodes in one process can only be stopped gracefully. The effects
// of SIGKILL are tested by package test/drill, with real processes.
package clustertest
