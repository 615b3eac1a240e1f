// Package overview answers requests for an overview of the yard: what happened in the last hours, and
// how it is now.
package overview

import (
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/yardmaster-dev/yardmaster/index/series"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Recorder keeps the series of this node. It is a projection of the ledger's log, which package
// consensus calls.
type Recorder struct {
	log    *slog.Logger
	mu     crash.Mutex
	series *series.Series
}

// NewRecorder returns a recorder with an empty series.
func NewRecorder(log *slog.Logger) *Recorder { return &Recorder{log: log, series: series.New()} }

// Applied adds the entry that the ledger has applied last.
func (r *Recorder) Applied(l *ledger.Ledger) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() {
		if cause := recover(); cause != nil { // statistics must not stop a member
			r.log.Error("statistics failed and start again", "err", fmt.Sprint(cause), "stack", string(debug.Stack()))
			r.startAt(l)
		}
	}()
	r.series.Apply(&series.Entry{Index: l.Index(), At: l.Now(), Transitions: l.Transitions(), Events: l.LastEvents()})
}

// Snapshot implements the projection of package consensus.
func (r *Recorder) Snapshot() (encode func() []byte) { return r.clone().Encode }

// Restored continues with the series in state, which was written with the ledger l. A state that
// cannot be read is as good as none.
func (r *Recorder) Restored(l *ledger.Ledger, state []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	restored, err := series.Decode(state)
	if err == nil && restored.Index() == l.Index() {
		r.series = restored
		return
	}
	if len(state) > 0 {
		r.log.Warn("statistics of a snapshot not read, they start again", "bytes", len(state), "err", err)
	}
	r.startAt(l)
}

// startAt begins an empty series after the last entry of l. The caller must hold r.mu.
func (r *Recorder) startAt(l *ledger.Ledger) {
	r.series = series.New()
	r.series.StartAt(l.Index(), l.Now())
}

// clone returns a copy of the series, which may be read.
func (r *Recorder) clone() *series.Series {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.series.Clone()
}
