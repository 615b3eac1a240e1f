package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

// StoreError stores the error of an attempt of a job in the stream of logs. The stream keeps as many errors of
// a job as messages of its log. A second error of the same dispatch is dropped within 30 s.
func (w *Writer) StoreError(ctx context.Context, id job.ID, e *job.AttemptError) error {
	data, err := job.EncodeJSON(e)
	if err != nil {
		return fmt.Errorf("error of job %s: %w", id, err)
	}
	return w.appendLog(ctx, subjects.ErrorSubject(id), job.RequestID(id, e.N)+"-error", data)
}

// errorTimeout bounds the reading of one error, which is not essential.
const errorTimeout = 500 * time.Millisecond

// AttemptError returns the error of a job's dispatch n, which must be the last error that is stored for the job.
// Otherwise it returns [ErrNotStored].
func (r *Reader) AttemptError(ctx context.Context, id job.ID, n uint32) (*job.AttemptError, error) {
	ctx, cancel := context.WithTimeout(ctx, errorTimeout)
	defer cancel()
	s, err := r.load(ctx, subjects.StreamLogs, getRequest{LastFor: subjects.ErrorSubject(id)})
	if errors.Is(err, ErrStreamMissing) {
		err = ErrNotStored
	}
	if err != nil {
		return nil, fmt.Errorf("error of job %s: %w", id, err)
	}
	last, err := parseError(s.data)
	if err != nil || last.N != n {
		return nil, fmt.Errorf("error of dispatch %d of job %s: %w", n, id, ErrNotStored)
	}
	return last, nil
}

// AttemptErrors returns the errors of the last attempts of a job that failed with details, newest first.
// It returns at most limit errors, in total at most maxBytes; more reports whether there are earlier ones.
func (r *Reader) AttemptErrors(ctx context.Context, id job.ID, limit, maxBytes int) (last []job.AttemptError, more bool, err error) {
	size := 0
	for from := uint64(1); ; {
		messages, err := r.readBatches(ctx, subjects.StreamLogs, getRequest{
			Seq: from, NextFor: subjects.ErrorSubject(id), Batch: logPagesPerJob, MaxBytes: logReadBytes,
		})
		if err != nil {
			return nil, false, err
		}
		if len(messages) == 0 {
			slices.Reverse(last)
			return last, more, nil
		}
		for i := range messages {
			if e, err := parseError(messages[i].Body); err == nil {
				last = append(last, *e)
				size += e.Error.Size()
			}
			from = messages[i].Seq + 1
		}
		for len(last) > limit || size > maxBytes && len(last) > 1 {
			size -= last[0].Error.Size()
			last, more = last[1:], true
		}
	}
}

func parseError(data []byte) (*job.AttemptError, error) {
	e := new(job.AttemptError)
	err := json.Unmarshal(data, e)
	return e, err
}
