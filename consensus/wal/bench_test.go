package wal

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// BenchmarkStoreLog appends entries to this log and to raft-boltdb, by turns, so that both
// run under the same load of the machine. The metrics are the time that an append takes
// and the processor time of the process for one. The temporary directory decides which
// disk is measured.
func BenchmarkStoreLog(b *testing.B) {
	for _, size := range []int{256, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			dir := b.TempDir()
			own, err := Open(dir, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer own.Close()
			bolt, err := raftboltdb.New(raftboltdb.Options{
				Path:        filepath.Join(b.TempDir(), "raft.db"),
				BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, InitialMmapSize: 64 << 20},
			})
			if err != nil {
				b.Fatal(err)
			}
			defer bolt.Close()
			var took, used [2]time.Duration
			index := uint64(0)
			for b.Loop() {
				index++
				entry := entriesFrom(index, 1, size)
				for i, store := range []raft.LogStore{own, bolt} {
					start, before := time.Now(), processorTime(b)
					if err := store.StoreLogs(entry); err != nil {
						b.Fatal(err)
					}
					took[i] += time.Since(start)
					used[i] += processorTime(b) - before
				}
			}
			b.ReportMetric(0, "ns/op") // the sum of both says nothing
			for i, name := range []string{"wal", "bolt"} {
				b.ReportMetric(float64(took[i].Microseconds())/float64(b.N), name+"-µs")
				b.ReportMetric(float64(used[i].Microseconds())/float64(b.N), name+"-cpu-µs")
			}
		})
	}
}

// processorTime returns the processor time that the process has used.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
