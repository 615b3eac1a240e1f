package arch

import (
	"go/ast"
	"go/types"
	"slices"
	"testing"
)

// unshared lists the fields that are a lock of package sync in the packages of a node, and why a panic
// while one is held need not end the process.
var unshared = map[string]string{
	"consensus.Node.submitMu":               "never held by a goroutine that contains panics while it changes anything but the order of proposals, and for long if Raft is slow",
	"consensus.Replica.mu":                  "peers hold it for reading; a panic of Apply, which writes, is not contained",
	"consensus.watermarks.saveMu":           "held while the file is written",
	"consensus.watermarks.mu":               "held by Raft only",
	"consensus/wal.Log.writeMu":             "held by Raft only",
	"consensus/wal.Log.mu":                  "held by Raft only",
	"edge.conn.sessionMu":                   "the session ends with its connection",
	"edge.outbox.mu":                        "the output ends with its connection",
	"edge.stopwatch.mu":                     "of one connection",
	"health/consistency.Hasher.mu":          "held while a hash is computed",
	"membership.drain.beginMu":              "held while members are asked",
	"membership.drain.mu":                   "held while a change is carried out",
	"runnerpool.jobLog.mu":                  "what a process prints belongs to it",
	"server/deadletters.requeuer.largeBody": "allows one large body at a time and guards nothing",
	"server/jobview.Viewer.largeBody":       "allows one large body at a time and guards nothing",
	"server/worker.session.mu":              "the session ends with its connection",
	"tracing.Tracer.mu":                     "spans may be lost",
}

// clients are the packages whose goroutines serve no peers of a node.
var clients = []string{"cli", "client", "cmd", "edge/overhop", "examples", "internal", "runnerpool/rrq", "test"}

// TestSharedLocks checks that structs of a node are guarded by a crash.Mutex; see package crash.
func TestSharedLocks(t *testing.T) {
	found := map[string]bool{}
	for _, s := range moduleSources(t) {
		if s.test || inPackages(s.pkg, clients) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, isType := n.(*ast.TypeSpec)
			if !isType {
				return true
			}
			fields, isStruct := spec.Type.(*ast.StructType)
			if !isStruct {
				return true
			}
			for _, field := range fields.Fields.List {
				if lock := types.ExprString(field.Type); !slices.Contains([]string{"sync.Mutex", "sync.RWMutex"}, lock) {
					continue
				}
				name := s.pkg + "." + spec.Name.Name
				for _, id := range field.Names {
					name += "." + id.Name
				}
				found[name] = true
				if unshared[name] == "" {
					t.Errorf("%s: use a crash.Mutex for %s, or add it to unshared", s.path(), name)
				}
			}
			return true
		})
	}
	for name := range unshared {
		if !found[name] {
			t.Errorf("%s is in unshared and is no lock of package sync", name)
		}
	}
}
