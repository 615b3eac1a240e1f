package ledger

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// No caller's text beyond its bound reaches the state, whichever command
// carries it.
func TestBounds_RefuseLongTexts(t *testing.T) {
	long := strings.Repeat("x", MaxReason+1)
	for _, c := range []Command{
		&AcquireAuthority{Owner: long}, &AcquireAuthority{LeasedUntil: long}, &RenewAuthority{LeaseID: long},
		&QueueDispatch{RequestID: long}, &QueueDispatch{RequestID: "r", Target: long},
		&QueueDispatch{RequestID: "r", Metadata: []byte(`"` + long + `"`)},
		&MarkNotified{RequestID: "r", Channel: long}, &MarkDelivered{RequestID: long},
		&MarkFailed{RequestID: "r", Reason: long}, &RequestReplay{Cursor: &long},
		&CancelJob{Reason: long}, &AddQueue{Name: long}, &RemoveQueue{Name: long}, &PauseQueue{Name: long},
	} {
		l := New()
		results := l.Apply(Stamp{Index: 1, Term: 1, At: time.Unix(1, 0)}, []Command{c})
		var tooLong *TooLongError
		if !errors.As(results[0].Err, &tooLong) || l.LastEvent() != 0 {
			t.Errorf("%T: %v, %d events", c, results[0].Err, l.LastEvent())
		}
		if TextBytes(c) < MaxReason {
			t.Errorf("%T is counted with %d bytes", c, TextBytes(c))
		}
	}
}
