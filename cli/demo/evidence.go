package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	states    map[job.ID]jobState
	history   eventLog
	witnesses map[job.ID][]witnessLine
}

// jobState is the state of a job in the ledger, the final one unless the job is late.
type jobState struct {
	state    string
	attempts uint32
	losses   uint32
}

// witnessLine is one attempt as recorded by its runner or worker.
type witnessLine struct{ attempt, fence string }

// eventLog is a summary of history.
type eventLog struct {
	events     int
	gaps       int            // events whose number is not the next
	delivered  map[job.ID]int // deliveries of each job
	duplicates int            // dispatches that ended more than once
	ends       []time.Time    // ends of dispatches
	acquired   []time.Time    // acquisitions of the authority

	endedDispatches map[string]bool // by request id
}

// collectEvidence reads the attempts from the witness files of workers and runners, and the
// events from history, and adds them to the states of the jobs.
func (c *demoCluster) collectEvidence(ctx context.Context, states map[job.ID]jobState) (s evidence, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.states = states
	if s.witnesses, err = c.readWitnesses(); err != nil {
		return s, err
	}
	completed := 0
	for _, e := range s.states {
		if e.state == job.Completed.String() {
			completed++
		}
	}

	// History is published after the commit. If it does not catch up in time,
	// the report shows the gap.
	limited, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	err = c.Until(limited, "history is complete", func() error {
		if s.history, err = c.readHistory(limited); err != nil {
			return err
		}
		if len(s.history.delivered) < completed {
			return fmt.Errorf("history has %d of %d deliveries", len(s.history.delivered), completed)
		}
		return nil
	})
	if len(s.history.delivered) > 0 {
		return s, nil
	}
	return s, err
}

// statesOnceEnded returns the states of all jobs if as many have ended at one node. It
// reads them at the same node, since the ledger of another one may be behind.
func statesOnceEnded(ctx context.Context, ask askFunc, jobs int) (map[job.ID]jobState, error) {
	numbers, err := tally(ctx, ask)
	if err == nil && numbers["ended"] < jobs {
		err = fmt.Errorf("%d of %d have ended", numbers["ended"], jobs)
	}
	if err != nil {
		return nil, err
	}
	return readStates(ctx, ask)
}

// readStates returns the states of all jobs at one node, which it requests page by page.
func readStates(ctx context.Context, ask askFunc) (map[job.ID]jobState, error) {
	states := make(map[job.ID]jobState)
	request := api.JobListRequest{Queues: []string{queueOverhop, queueRRQ}, Order: api.OrderOldest, Limit: 1000, Brief: true}
	for {
		var page api.JobList
		if err := ask(ctx, api.Subject("job-list"), &request, &page); err != nil {
			return nil, err
		}
		for i := range page.Jobs {
			j := &page.Jobs[i]
			states[j.ID] = jobState{j.State, j.Attempts, j.Losses}
		}
		if request.After = page.Next; page.Next == "" {
			return states, nil
		}
	}
}

// readWitnesses returns the attempts of each job that are recorded in the witness files
// of workers ("<jid> <attempt> <fence>") and runners ("<request> <id> <attempt> <fence>").
func (c *demoCluster) readWitnesses() (map[job.ID][]witnessLine, error) {
	attempts := make(map[job.ID][]witnessLine)
	files, err := filepath.Glob(c.path("*.witness"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read a witness: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 3 {
				continue // the end of a runner's handler, or a line truncated by a kill
			}
			name := fields[len(fields)-3]
			id, err := job.ParseID(name[strings.LastIndexByte(name, ':')+1:])
			if err != nil {
				return nil, fmt.Errorf("%s: line %q has no job id", filepath.Base(file), strings.TrimSpace(line))
			}
			attempts[id] = append(attempts[id], witnessLine{fields[len(fields)-2], fields[len(fields)-1]})
		}
	}
	return attempts, nil
}

// readHistory returns a summary of the cluster's history, read from one node.
func (c *demoCluster) readHistory(ctx context.Context) (eventLog, error) {
	h := eventLog{delivered: make(map[job.ID]int), endedDispatches: make(map[string]bool)}
	lastNumber := uint64(0)
	err := c.survivor(0).client.History(ctx, time.Time{}, false, func(batch streams.Batch) error {
		for line := range bytes.SplitSeq(bytes.TrimSpace(batch.Body), []byte("\n")) {
			var e struct {
				Event   string    `json:"event"`
				Request string    `json:"request_id"`
				Number  uint64    `json:"seq"`
				At      time.Time `json:"at"`
			}
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("history line %q: %w", line, err)
			}
			if e.Number != lastNumber+1 {
				h.gaps++
			}
			lastNumber = e.Number
			h.add(e.Event, e.Request, e.At)
		}
		return nil
	})
	return h, err
}

// add adds one event to the summary. request is the request id of the event's dispatch,
// "" if the event is about none.
func (h *eventLog) add(event, request string, at time.Time) {
	h.events++
	switch event {
	case ledger.AuthorityAcquired.String():
		h.acquired = append(h.acquired, at)
	case ledger.DispatchDelivered.String(), ledger.DispatchFailed.String():
		if h.endedDispatches[request] {
			h.duplicates++
		}
		h.endedDispatches[request] = true
		h.ends = append(h.ends, at)
		if id, _, ok := job.ParseRequestID(request); ok && event == ledger.DispatchDelivered.String() {
			h.delivered[id]++
		}
	}
}
