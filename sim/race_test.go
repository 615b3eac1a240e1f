//go:build race

package sim

// The race detector needs few stories, and much time for each.
func init() { *seedsFlag = 50 }
