package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// stock is what three sides say of what happened: the yard of its jobs, its
// history, and whoever ran the jobs.
type stock struct {
	ends      map[job.ID]end
	history   told
	witnesses map[job.ID][]sighting
}

// end is how a job stands in the yard.
type end struct {
	state    string
	attempts uint32
	losses   uint32
}

// sighting is one attempt as its runner or worker wrote it down.
type sighting struct{ attempt, fence string }

// told is the yard's history, as far as it matters here.
type told struct {
	events    int
	gaps      int // numbers that are missing or out of order
	delivered map[job.ID]int
	twice     int         // dispatches that ended more than once
	ends      []time.Time // of dispatches
	acquired  []time.Time
	last      time.Time
}

func (y *yard) takeStock(ctx context.Context, l *load) (s stock, err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if s.ends, err = y.readEnds(ctx); err != nil {
		return s, err
	}
	if s.witnesses, err = y.readWitnesses(); err != nil {
		return s, err
	}
	completed := 0
	for _, e := range s.ends {
		if e.state == job.Completed.String() {
			completed++
		}
	}
	// History is written a moment after the fact. If it does not get there,
	// the report shows it.
	telling, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	err = y.until(telling, "history is complete", func() error {
		if s.history, err = y.readHistory(telling); err != nil {
			return err
		}
		if len(s.history.delivered) < completed {
			return fmt.Errorf("%d of %d deliveries are told", len(s.history.delivered), completed)
		}
		return nil
	})
	if err != nil && len(s.history.delivered) > 0 {
		err = nil
	}
	return s, err
}

// page is the most jobs a node lists at once.
const page = 1000

// readEnds reads every job that has ended, from a survivor.
func (y *yard) readEnds(ctx context.Context) (map[job.ID]end, error) {
	ends := make(map[job.ID]end)
	for _, queue := range []string{queueOverhop, queueRRQ} {
		for _, state := range []job.State{job.Completed, job.Failed} {
			for number, full := 1, true; full; number++ {
				var answer struct {
					Jobs []struct {
						ID       job.ID `json:"id"`
						State    string `json:"state"`
						Attempts uint32 `json:"attempts"`
						Losses   uint32 `json:"losses"`
					} `json:"jobs"`
				}
				question := map[string]any{"queue": queue, "state": state.String(), "page": number, "page_size": page}
				if err := y.askAny(ctx, cluster.SubjectAPI+".job.list", question, &answer); err != nil {
					return nil, err
				}
				for _, j := range answer.Jobs {
					ends[j.ID] = end{j.State, j.Attempts, j.Losses}
				}
				full = len(answer.Jobs) == page
			}
		}
	}
	return ends, nil
}

// readWitnesses reads what workers ("<jid> <attempt> <fence>") and runners
// ("<request> <id> <attempt> <fence>") wrote down.
func (y *yard) readWitnesses() (map[job.ID][]sighting, error) {
	seen := make(map[job.ID][]sighting)
	files, err := filepath.Glob(y.path("*.witness"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read a witness: %w", err)
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 3 {
				continue // a runner's end, or cut off by a kill in the middle of a line
			}
			who := fields[len(fields)-3]
			id, err := job.ParseID(who[strings.LastIndexByte(who, ':')+1:])
			if err != nil {
				return nil, fmt.Errorf("%s: line %q names no job", filepath.Base(file), lines.Text())
			}
			seen[id] = append(seen[id], sighting{fields[len(fields)-2], fields[len(fields)-1]})
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read a witness: %w", err)
		}
	}
	return seen, nil
}

func (y *yard) readHistory(ctx context.Context) (told, error) {
	h := told{delivered: make(map[job.ID]int)}
	ended := make(map[string]bool)
	number := uint64(0)
	err := y.survivor(0).client.History(ctx, time.Time{}, false, func(t cluster.Tale) error {
		for line := range bytes.SplitSeq(bytes.TrimSpace(t.Body), []byte("\n")) {
			var e struct {
				Event   string    `json:"event"`
				Request string    `json:"request_id"`
				Number  uint64    `json:"seq"`
				At      time.Time `json:"at"`
			}
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("history line %q: %w", line, err)
			}
			if e.Number != number+1 {
				h.gaps++
			}
			number = e.Number
			h.add(e.Event, e.Request, e.At, ended)
		}
		return nil
	})
	return h, err
}

// add counts one event; ended holds the dispatches that have ended so far.
func (h *told) add(event, request string, at time.Time, ended map[string]bool) {
	h.events++
	h.last = at
	switch event {
	case ledger.AuthorityAcquired.String():
		h.acquired = append(h.acquired, at)
	case ledger.DispatchDelivered.String(), ledger.DispatchFailed.String():
		if ended[request] {
			h.twice++
		}
		ended[request] = true
		h.ends = append(h.ends, at)
		if id, _, ok := job.ParseRequestID(request); ok && event == ledger.DispatchDelivered.String() {
			h.delivered[id]++
		}
	}
}
