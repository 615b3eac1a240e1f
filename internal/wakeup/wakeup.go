// Package wakeup wakes goroutines that wait on a channel.
package wakeup

// Send wakes the receiver of c, a channel with a buffer of one. It does not block: if a
// wake-up is pending already, that one is enough.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
