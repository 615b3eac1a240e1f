package runnerpool

import (
	"encoding/json"
	"log/slog"
	"sync"

	"yardmaster/job"
)

// voices knows what a process is running, so that what it prints finds its job:
// a line that names a job or request is that one's, and every other line is of
// the one request that runs, if the process runs but one at a time.
type voices struct {
	runner string
	single bool // one request at a time
	keep   func(job.LogLine)
	log    *slog.Logger

	mu   sync.Mutex
	now  []job.LogLine // what runs: lines without a text
	past []job.LogLine // the last that ran, newest last
}

// lateVoices is how many dispatches that have ended may still be named.
const lateVoices = 32

func (v *voices) begin(d *dispatch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now = append(v.now, job.LogLine{Job: d.Job, N: d.N, Attempt: d.Attempt, Worker: d.Worker})
}

func (v *voices) end(d *dispatch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.now {
		if v.now[i].Job == d.Job && v.now[i].N == d.N {
			if len(v.past) == lateVoices {
				v.past = append(v.past[:0], v.past[1:]...)
			}
			v.past = append(v.past, v.now[i])
			v.now = append(v.now[:i], v.now[i+1:]...)
			return
		}
	}
}

// speaker finds whose a line is; record is nil if it is no JSON object.
func (v *voices) speaker(record map[string]json.RawMessage) (who job.LogLine, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if who, known = v.named(record); known {
		return who, true
	}
	for _, inner := range [...]string{"fields", "span"} { // where Rust's tracing puts them
		var nested map[string]json.RawMessage
		if raw := record[inner]; len(raw) > 0 && json.Unmarshal(raw, &nested) == nil {
			if who, known = v.named(nested); known {
				return who, true
			}
		}
	}
	if v.single && len(v.now) == 1 {
		return v.now[0], true
	}
	return who, false
}

// named finds the dispatch of this process that a record names; of several of
// one job the latest.
func (v *voices) named(record map[string]json.RawMessage) (who job.LogLine, known bool) {
	request := text(record["request_id"])
	for _, key := range [...]string{"request_id", "job_id", "rrq.job_id"} {
		name := text(record[key])
		if name == "" {
			continue
		}
		for _, of := range [...][]job.LogLine{v.now, v.past} {
			for i := len(of) - 1; i >= 0; i-- {
				if name == of[i].Job.String() || name == request && request == job.RequestID(of[i].Job, of[i].N) {
					return of[i], true
				}
			}
		}
	}
	return who, false
}
