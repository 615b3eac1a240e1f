package worker

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Status returns the cluster's part of the STATUS frame. It does not fail.
func (c *Cluster) Status(context.Context) (edge.Status, error) {
	s := edge.Status{DataPath: c.DataDir, Cluster: map[string]string{
		"node": c.Node, "yard": c.ClusterName, "leader": c.RaftLeader(),
	}}
	s.DataSize = c.dataSize.size(s.DataPath)
	_, err := os.Stat(s.DataPath)
	s.PathExists = err == nil
	c.Ledger.View(func(l *ledger.Ledger) {
		s.Bootstrapped = l.Authority().Owner != ""
		s.Cluster["authority"] = l.Authority().Owner
		for _, q := range l.Queues() {
			s.Queues++
			if q.Paused {
				s.PausedQueues++
			}
		}
	})
	return s, nil
}

// dirSizeMaxAge is how long the size of a directory is cached: determining it reads the
// metadata of every file.
const dirSizeMaxAge = 5 * time.Second

// dirSizeCache caches the size of a directory.
type dirSizeCache struct {
	mu      crash.Mutex
	expires time.Time
	bytes   int64
}

// size returns the total size of the files below dir in bytes, up to dirSizeMaxAge old.
func (f *dirSizeCache) size(dir string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Now().Before(f.expires) {
		return f.bytes
	}
	f.bytes = 0
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() { // ignore errors: files come and go
			if info, err := d.Info(); err == nil {
				f.bytes += info.Size()
			}
		}
		return nil
	})
	f.expires = time.Now().Add(dirSizeMaxAge)
	return f.bytes
}
