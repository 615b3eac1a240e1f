package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
)

// maxBulk is how many jobs one request may bring; all of them together fit a
// message.
const maxBulk = 1000

// bulkQuestion brings jobs. Each may name its queue; the others go to Queue.
type bulkQuestion struct {
	Queue string            `json:"queue"`
	Jobs  []json.RawMessage `json:"jobs"`
}

// bulkJob is one of them.
type bulkJob struct {
	enqueueRequest
	Queue string `json:"queue"`
}

// bulkReply tells what became of each job, in the order they came in.
type bulkReply struct {
	Refused int        `json:"refused"` // how many of them
	Jobs    []bulkItem `json:"jobs"`
}

// bulkItem is where a job went, or why it went nowhere.
type bulkItem struct {
	ID        *job.ID    `json:"id,omitempty"`
	Queue     string     `json:"queue,omitempty"`
	Duplicate bool       `json:"duplicate,omitempty"`
	Debounced bool       `json:"debounced,omitempty"`
	Error     *bulkError `json:"error,omitempty"`
}

// bulkError is a refusal, by the table of codes in [cluster.APIError].
type bulkError struct {
	Code         string `json:"code"`
	Text         string `json:"text"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"` // 0: not known
}

// maxBulkText is how much of a refusal's text one item shows, in bytes: all
// answers together fit a message, whatever was in the jobs.
const maxBulkText = 300

// handleBulk accepts many jobs at once: side by side, so that they share the
// lane's and the ledger's batches. What is wrong with one is no matter of the
// others.
func (n *Node) handleBulk(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[bulkQuestion](r)
	if err != nil {
		return nil, err
	}
	if len(q.Jobs) == 0 || len(q.Jobs) > maxBulk {
		return nil, &job.InvalidError{Reason: fmt.Sprintf(`%d jobs: give 1 to %d as {"queue": "mail", "jobs": [{"function": "send"}]}`, len(q.Jobs), maxBulk)}
	}
	reply := bulkReply{Jobs: make([]bulkItem, len(q.Jobs))}
	var open sync.WaitGroup
	open.Add(len(q.Jobs))
	for i, text := range q.Jobs {
		done := func(made enqueueReply, err error) {
			reply.Jobs[i] = bulkItemOf(made, err)
			open.Done()
		}
		queue, one, err := readBulkJob(r, q.Queue, i, text)
		if ctx.Err() != nil { // the node stops, or nobody waits any more
			err = &job.UnavailableError{Reason: "the request was cut off before this job", RetryAfter: time.Second}
		}
		if err != nil {
			done(enqueueReply{}, err)
			continue
		}
		n.enqueue(queue, &one, nil, terms{patient: true}, func(made enqueueReply, _ job.Position, err error) { done(made, err) })
	}
	open.Wait() // all are answered whatever happens: publishes have a patience of their own
	for i := range reply.Jobs {
		if reply.Jobs[i].Error != nil {
			reply.Refused++
		}
	}
	return reply, nil
}

func bulkItemOf(made enqueueReply, err error) bulkItem {
	if err == nil {
		return bulkItem{ID: &made.ID, Queue: made.Queue, Duplicate: made.Duplicate, Debounced: made.Debounced}
	}
	refusal := cluster.RefusalOf(err)
	text := strings.ToValidUTF8(refusal.Text[:min(len(refusal.Text), maxBulkText)], "")
	return bulkItem{Error: &bulkError{refusal.Code, text, refusal.RetryAfter.Milliseconds()}}
}

// readBulkJob reads the job at a place of the list; headers of the request are
// for all of them. Its key names with their places those that bring none, so that a
// list is repeated like a job.
func readBulkJob(r *cluster.Request, queue string, place int, text []byte) (string, enqueueRequest, error) {
	var one bulkJob
	if err := readSpec(text, &one.enqueueRequest, &one); err != nil {
		return "", enqueueRequest{}, err
	}
	if one.Queue != "" {
		queue = one.Queue
	}
	if queue == "" {
		return "", enqueueRequest{}, &job.InvalidError{Reason: "job names no queue: give queue in the job or beside jobs"}
	}
	if key := r.Header(cluster.HeaderMsgID); key != "" && one.ID == "" {
		one.ID = fmt.Sprintf("%s#%d", key, place)
	}
	_, err := one.Take(r.Producer())
	return queue, one.enqueueRequest, err
}
