// Package nodetest runs whole yards in one process for tests: real nodes with
// real NATS, Raft and disks, joined through lines that a test can break.
//
//	y := nodetest.Start(t, 3)
//	y.WaitAuthority().Isolate()
//	y.WaitAuthority() // another one
//
// When the test ends, the yard is healed and must agree with itself: one
// authority, the same ledger on every node, and, after it has stopped, no
// goroutine left. A graceful stop is all that one process can show; what
// SIGKILL does is shown by package drill, with real processes.
package nodetest
