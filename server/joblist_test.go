package server

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestKeptMS checks for how long a list says that failed jobs are counted.
func TestKeptMS(t *testing.T) {
	l := ledger.New()
	stamp := ledger.Stamp{Index: 1, Term: 1, At: time.Now()}
	apply := func(c ledger.Command) {
		t.Helper()
		if r := l.Apply(stamp, []ledger.Command{c})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		stamp.Index++
		stamp.Epoch = l.Authority().Epoch
	}
	age := func(d time.Duration) []job.RetentionSetting {
		return []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundAge}, Value: int64(d)}}
	}
	apply(&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour), Level: ledger.Level})
	if got := keptMS(l, nil); got != 0 {
		t.Errorf("by default %d", got)
	}
	apply(&ledger.SetRetention{Settings: age(time.Hour)})
	if got := keptMS(l, []string{"none"}); got != time.Hour.Milliseconds() {
		t.Errorf("after an hour %d", got)
	}
	apply(&ledger.SetRetention{Settings: age(48 * time.Hour)})
	if got := keptMS(l, nil); got != 0 {
		t.Errorf("after two days %d", got)
	}
}
