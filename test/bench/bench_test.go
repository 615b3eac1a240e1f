package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain runs the test binary as a peer if the first argument is PeerVerb.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == PeerVerb {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := Peer(ctx, os.Args[2]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestFloors measures real floors in very short rounds.
func TestFloors(t *testing.T) {
	var out bytes.Buffer
	figures, err := Run(t.Context(), Options{
		Only: []string{"floor.raft16k.alone", "floor.queue", "floor.echo"}, Round: 100 * time.Millisecond, Rounds: 1, Out: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var f Figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		names = append(names, f.Name)
		if f.Value <= 0 || f.Value != figures[i].Value {
			t.Errorf("%s is %v, then %v", f.Name, f.Value, figures[i].Value)
		}
		if strings.HasPrefix(f.Name, "floor.queue") && (f.Jobs == 0 || f.Jobs != f.Settled) {
			t.Errorf("%s: accepted %d, settled %d", f.Name, f.Jobs, f.Settled)
		}
	}
	want := []string{"floor.raft16k.alone", "floor.queue.start200", "floor.queue.start1000", "floor.echo.alone", "floor.echo.sync64",
		"floor.queue.async", "floor.queue.sync64", "floor.queue.start500", "floor.queue.start2000"}
	if !slices.Equal(names, want) {
		t.Errorf("measured %v, want %v", names, want)
	}
}

func TestLedgerFigures(t *testing.T) {
	figures, err := Run(t.Context(), Options{Only: []string{"ledger.apply.1k"}, Rounds: 1})
	if err != nil {
		t.Fatal(err)
	}
	if len(figures) != 1 || figures[0].Value < 10 || figures[0].Value > 1e6 {
		t.Errorf("figures %+v", figures)
	}
}

func TestRun_UnknownFigure(t *testing.T) {
	_, err := Run(t.Context(), Options{Only: []string{"speed"}})
	if !errors.Is(err, ErrUnknownFigure) || !strings.Contains(err.Error(), "yard3.plain") {
		t.Errorf("error %v", err)
	}
}

// TestLoad_Loses checks that a load with jobs that do not end, or end twice, is an
// error.
func TestLoad_Loses(t *testing.T) {
	l := &load{}
	l.begin()
	l.accepted.Store(2)
	l.ended(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.awaitEnds(ctx); err == nil || !strings.Contains(err.Error(), "accepted 2, settled 1") {
		t.Errorf("error %v", err)
	}
	l.ended(0)
	l.ended(0) // one more than accepted
	if err := l.awaitEnds(t.Context()); err == nil {
		t.Error("no error although more jobs settled than were accepted")
	}
}

func TestJobBody(t *testing.T) {
	for _, function := range []string{"", "demo#echo"} {
		limitKey, fields := strings.TrimSuffix(function, "#echo"), ""
		if limitKey != "" {
			fields = `,"limit_key":"` + limitKey + `"`
		}
		body := jobBody(function, fields, 123456789)
		var job struct {
			Function string
			LimitKey string `json:"limit_key"`
			Params   struct{ Due int64 }
		}
		if err := json.Unmarshal(body, &job); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if len(body) != bodySize || job.Function != function || job.LimitKey != limitKey || job.Params.Due != 123456789 || dueOf(body) != 123456789 {
			t.Errorf("%d bytes, %+v, due %d", len(body), job, dueOf(body))
		}
	}
}
