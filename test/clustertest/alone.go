package clustertest

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// StartAlone is [Start] for examples, which have no test. It panics where a test would fail.
// The caller must call stop at the end.
func StartAlone(n int, options ...Option) (c *Cluster, stop func()) {
	t := &alone{}
	return Start(t, n, options...), t.end
}

// alone stands for the test of a cluster that has none.
type alone struct {
	testing.TB
	cleanups []func()
}

func (t *alone) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

func (t *alone) Helper()                        {}
func (t *alone) Failed() bool                   { return false }
func (t *alone) Logf(string, ...any)            {}
func (t *alone) Cleanup(f func())               { t.cleanups = append(t.cleanups, f) }
func (t *alone) Error(v ...any)                 { panic(fmt.Sprint(v...)) }
func (t *alone) Fatal(v ...any)                 { panic(fmt.Sprint(v...)) }
func (t *alone) Errorf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
func (t *alone) Fatalf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }

// TempDir returns a new directory, which is removed at the end.
func (t *alone) TempDir() string {
	dir, err := os.MkdirTemp("", "yardmaster-alone-")
	if err != nil {
		panic(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
