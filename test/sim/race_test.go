//go:build race

package sim

// Under the race detector a seed takes much longer, and fewer seeds suffice.
func init() { *seedsFlag = 50 }
