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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// evidence is what three independent sources report: the ledger about each job,
// history, and the witness files of workers and runners.
type evidence struct {
	ends      map[job.ID]end
	history   eventLog
	witnesses map[job.ID][]witnessLine
}

// end is the terminal state of a job in the ledger.
type end struct {
	state    string
	attempts uint32
	losses   uint32
}

// witnessLine is one attempt as recorded by its runner or worker.
type witnessLine struct{ attempt, fence string }

// eventLog is a summary of history.
type eventLog struct {
	events     int
	gaps       int // events whose number is not the next
	delivered  map[job.ID]int
	duplicates int         // dispatches that ended more than once
	ends       []time.Time // of dispatches
	acquired   []time.Time
	last       time.Time
}

// collectEvidence reads the terminal states, the witness files and history.
func (c *demoCluster) collectEvidence(ctx context.Context, l *load) (s evidence, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if s.ends, err = c.readEnds(ctx); err != nil {
		return s, err
	}
	if s.witnesses, err = c.readWitnesses(); err != nil {
		return s, err
	}
	completed := 0
	for _, e := range s.ends {
		if e.state == job.Completed.String() {
			completed++
		}
	}
	// History is published after the commit. If it does not catch up in time,
	// the report shows the gap.
	waiting, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	err = c.Until(waiting, "history is complete", func() error {
		if s.history, err = c.readHistory(waiting); err != nil {
			return err
		}
		if len(s.history.delivered) < completed {
			return fmt.Errorf("history has %d of %d deliveries", len(s.history.delivered), completed)
		}
		return nil
	})
	if err != nil && len(s.history.delivered) > 0 {
		err = nil
	}
	return s, err
}

// page is the maximum page size of job.list.
const page = 1000

// readEnds reads all jobs that have ended from surviving nodes.
func (c *demoCluster) readEnds(ctx context.Context) (map[job.ID]end, error) {
	ends := make(map[job.ID]end)
	for _, queue := range []string{queueOverhop, queueRRQ} {
		for _, state := range []job.State{job.Completed, job.Failed} {
			for number, full := 1, true; full; number++ {
				var answer api.JobPage
				turn := 0
				subject := api.Subject("job-list")
				err := c.Until(ctx, "a node answers "+subject, func() (err error) {
					turn++
					answer, err = ask[api.JobPage](ctx, c.survivor(turn), subject,
						map[string]any{"queue": queue, "state": state.String(), "page": number, "page_size": page})
					return err
				})
				if err != nil {
					return nil, err
				}
				for i := range answer.Jobs {
					j := &answer.Jobs[i]
					ends[j.ID] = end{j.State, j.Attempts, j.Losses}
				}
				full = len(answer.Jobs) == page
			}
		}
	}
	return ends, nil
}

// readWitnesses reads the files of workers ("<jid> <attempt> <fence>") and runners
// ("<request> <id> <attempt> <fence>").
func (c *demoCluster) readWitnesses() (map[job.ID][]witnessLine, error) {
	seen := make(map[job.ID][]witnessLine)
	files, err := filepath.Glob(c.path("*.witness"))
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
				continue // the end of a runner's handler, or a line truncated by a kill
			}
			name := fields[len(fields)-3]
			id, err := job.ParseID(name[strings.LastIndexByte(name, ':')+1:])
			if err != nil {
				return nil, fmt.Errorf("%s: line %q has no job id", filepath.Base(file), lines.Text())
			}
			seen[id] = append(seen[id], witnessLine{fields[len(fields)-2], fields[len(fields)-1]})
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read a witness: %w", err)
		}
	}
	return seen, nil
}

// readHistory reads the events of the cluster from one node.
func (c *demoCluster) readHistory(ctx context.Context) (eventLog, error) {
	h := eventLog{delivered: make(map[job.ID]int)}
	ended := make(map[string]bool)
	number := uint64(0)
	err := c.survivor(0).client.History(ctx, time.Time{}, false, func(t streams.Batch) error {
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

// add adds one event. ended holds the dispatches that have ended so far.
func (h *eventLog) add(event, request string, at time.Time, ended map[string]bool) {
	h.events++
	h.last = at
	switch event {
	case ledger.AuthorityAcquired.String():
		h.acquired = append(h.acquired, at)
	case ledger.DispatchDelivered.String(), ledger.DispatchFailed.String():
		if ended[request] {
			h.duplicates++
		}
		ended[request] = true
		h.ends = append(h.ends, at)
		if id, _, ok := job.ParseRequestID(request); ok && event == ledger.DispatchDelivered.String() {
			h.delivered[id]++
		}
	}
}
