package jobview

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestFind_NilUUID checks that keys are found in a yard in which an earlier build has made a job with the
// nil UUID, and that the error for an unknown key without a queue says how to name the queue.
func TestFind_NilUUID(t *testing.T) {
	l, stamp := ledger.New(), ledger.Stamp{Index: 1, Term: 1, At: time.Now()}
	l.Apply(stamp, []ledger.Command{&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour)}})
	stamp.Epoch = l.Authority().Epoch
	id := func(queue string) job.ID {
		id, err := job.KeyID(queue, "order-7")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	added := func(queue string, seq uint64, id job.ID) job.Job {
		return job.Job{ID: id, Queue: queue, Position: job.Position{Seq: seq}, Accepted: stamp.At}
	}
	for _, c := range []ledger.Command{
		&ledger.Bootstrap{Lanes: []string{"L0"}},
		&ledger.Ingest{Identity: "L0", To: 2, CreateQueues: true, Jobs: []job.Job{added("letters", 1, job.ID{}), added("mail", 2, id("mail"))}},
	} {
		stamp.Index++
		for _, r := range l.Apply(stamp, []ledger.Command{c}) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	if found, err := find(l, "order-7", "", nil); err != nil || found != id("mail") {
		t.Errorf("found %s, %v", found, err)
	}
	if _, err := find(l, "order-8", "", nil); !errors.Is(err, job.ErrJobNotFound) || !strings.Contains(err.Error(), `"<queue>:order-8"`) {
		t.Errorf("an unknown key: %v", err)
	}
	for text, want := range map[string]bool{
		"order-7": true, id("mail").String(): true, "mail:order-7": true, "mail:" + id("mail").String(): true,
		"order-8": false, job.ID{}.String(): false, "letters:" + job.ID{}.String(): false, "letters:order-7": false,
	} {
		if _, err := find(l, text, "", []string{"mail", "none"}); (err == nil) != want || err != nil && !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("%s within mail: %v", text, err)
		}
		if _, err := find(l, text, "", []string{"none"}); !errors.Is(err, job.ErrJobNotFound) {
			t.Errorf("%s within another queue: %v", text, err)
		}
	}
	if _, err := find(l, job.ID{}.String(), "mail", nil); !errors.Is(err, job.ErrJobNotFound) || !strings.Contains(err.Error(), "queue letters") {
		t.Errorf("the nil UUID in another queue: %v", err)
	}
}
