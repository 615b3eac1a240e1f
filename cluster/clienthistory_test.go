package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
)

func TestClientHistory(t *testing.T) {
	c := startSingle(t)
	tell := func(first uint64) {
		t.Helper()
		batch := streams.Batch{Subject: subjects.History, First: first, Count: 2, Body: fmt.Appendf(nil, "{\"seq\":%d}\n[\"q\",\"AAAAAAAAAAAAAAAAAAAAAA\",\"mail\",\"\"]\n[\"d\",0,0]\n", first)}
		if _, err := appendBatch(c, subjects.StreamEvents, batch, (first-1)/2); err != nil {
			t.Fatal(err)
		}
	}
	client, err := Dial(t.Context(), c.ClientURL(), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	read := func(ctx context.Context, since time.Time, follow bool, enough int) (firsts []uint64) {
		t.Helper()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		err := client.History(ctx, since, follow, func(batch streams.Batch) error {
			if lines := strings.Split(string(batch.Body), "\n"); len(lines) != 3 || !strings.Contains(lines[1], fmt.Sprintf(`"DispatchDelivered","request_id":"00000000-0000-0000-0000-000000000000#1","seq":%d,`, batch.First+1)) {
				t.Errorf("a batch of the lines %q", lines)
			}
			if firsts = append(firsts, batch.First); len(firsts) == enough {
				stop()
			}
			return nil
		})
		if err != nil {
			t.Fatalf("history: %v", err)
		}
		return firsts
	}
	if got := read(withDeadline(t, 5*time.Second), time.Time{}, false, -1); got != nil {
		t.Fatalf("nothing is stored, but read %v", got)
	}
	tell(1)
	tell(3)
	if got := read(withDeadline(t, 5*time.Second), time.Time{}, false, -1); !slices.Equal(got, []uint64{1, 3}) {
		t.Fatalf("read %v", got)
	}
	if got := read(withDeadline(t, 5*time.Second), time.Now().Add(time.Minute), false, -1); got != nil {
		t.Fatalf("read from a future time: %v", got)
	}
	tell(5)
	if got := read(withDeadline(t, 5*time.Second), time.Time{}, true, 3); !slices.Equal(got, []uint64{1, 3, 5}) {
		t.Fatalf("followed %v", got)
	}
	broken := errors.New("broken")
	wantErr(t, client.History(t.Context(), time.Time{}, false, func(streams.Batch) error { return broken }), broken)
}
