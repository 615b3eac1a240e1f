//go:build race

package clustertest_test

func init() { raceDetector = true }
