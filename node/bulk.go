package node

import (
	"encoding/json"
	"fmt"
	"sync/atomic"

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

// handleBulk accepts many jobs at once: side by side, so that they share the
// lane's and the ledger's batches. What is wrong with one is no matter of the
// others.
func (n *Node) handleBulk(r *cluster.Request) {
	q, err := ask[bulkQuestion](r)
	if err == nil && (len(q.Jobs) == 0 || len(q.Jobs) > maxBulk) {
		err = &job.InvalidError{Reason: fmt.Sprintf(`%d jobs: give 1 to %d as {"queue": "mail", "jobs": [{"function": "send"}]}`, len(q.Jobs), maxBulk)}
	}
	if err != nil {
		n.refuse(r, err)
		return
	}
	items := make([]bulkItem, len(q.Jobs))
	var open atomic.Int64
	open.Store(int64(len(items)))
	for i, text := range q.Jobs {
		done := func(reply enqueueReply, err error) {
			if err != nil {
				refusal := cluster.RefusalOf(err)
				items[i].Error = &bulkError{refusal.Code, refusal.Text, refusal.RetryAfter.Milliseconds()}
			} else {
				items[i] = bulkItem{ID: &reply.ID, Queue: reply.Queue, Duplicate: reply.Duplicate, Debounced: reply.Debounced}
			}
			if open.Add(-1) == 0 {
				n.answerBulk(r, items)
			}
		}
		queue, one, err := readBulkJob(r, q.Queue, text)
		if err != nil {
			done(enqueueReply{}, err)
			continue
		}
		n.enqueue(queue, &one, nil, func(reply enqueueReply, _ job.Position, err error) { done(reply, err) })
	}
}

// readBulkJob reads one job; headers of the request are for all of them.
func readBulkJob(r *cluster.Request, queue string, text []byte) (string, enqueueRequest, error) {
	var one bulkJob
	if err := json.Unmarshal(text, &one); err != nil {
		return "", enqueueRequest{}, &job.InvalidError{Reason: "job is not valid JSON: " + err.Error()}
	}
	if one.Queue != "" {
		queue = one.Queue
	}
	if queue == "" {
		return "", enqueueRequest{}, &job.InvalidError{Reason: "job names no queue: give queue in the job or beside jobs"}
	}
	_, err := one.Take(r.Producer())
	return queue, one.enqueueRequest, err
}

func (n *Node) answerBulk(r *cluster.Request, items []bulkItem) {
	reply := bulkReply{Jobs: items}
	for i := range items {
		if items[i].Error != nil {
			reply.Refused++
		}
	}
	text, err := json.Marshal(reply)
	if err == nil {
		err = r.Respond(text)
	}
	n.unanswered(err)
}
