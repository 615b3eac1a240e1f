package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
)

// maxBulkJobs is the number of jobs that one request may carry. The whole request
// must also fit a NATS message.
const maxBulkJobs = 1000

// bulkRequest is a list of jobs. Those that name no queue go to Queue.
type bulkRequest struct {
	Queue string            `json:"queue"`
	Jobs  []json.RawMessage `json:"jobs"`
}

// bulkJob is one job of a bulk request.
type bulkJob struct {
	enqueueRequest
	Queue string `json:"queue"`
}

// bulkReply reports the result of each job, in the order of the request.
type bulkReply struct {
	Refused int        `json:"refused"` // number of jobs with an error
	Jobs    []bulkItem `json:"jobs"`
}

// bulkItem is the result of one job.
type bulkItem struct {
	ID        *job.ID    `json:"id,omitempty"`
	Queue     string     `json:"queue,omitempty"`
	Duplicate bool       `json:"duplicate,omitempty"`
	Debounced bool       `json:"debounced,omitempty"`
	Error     *bulkError `json:"error,omitempty"`
}

// bulkError is why one job was not accepted, with the codes of [cluster.APIError].
type bulkError struct {
	Code         string `json:"code"`
	Text         string `json:"text"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"` // 0: unknown
}

// maxBulkText is the number of bytes of an error text that one item shows, so that
// the reply always fits a NATS message.
const maxBulkText = 300

// handleBulk accepts many jobs at the same time, so that they share the batches of
// the lanes and of the ledger. Each job succeeds or fails independently.
func (n *Node) handleBulk(ctx context.Context, r *cluster.Request) (any, error) {
	req, err := decodeRequest[bulkRequest](r)
	if err != nil {
		return nil, err
	}
	if len(req.Jobs) == 0 || len(req.Jobs) > maxBulkJobs {
		return nil, &job.InvalidError{Reason: fmt.Sprintf(`%d jobs: give 1 to %d as {"queue": "mail", "jobs": [{"function": "send"}]}`, len(req.Jobs), maxBulkJobs)}
	}
	reply := bulkReply{Jobs: make([]bulkItem, len(req.Jobs))}
	var pending sync.WaitGroup
	pending.Add(len(req.Jobs))
	for i, text := range req.Jobs {
		done := func(enqueued enqueueReply, err error) {
			reply.Jobs[i] = bulkItemOf(enqueued, err)
			pending.Done()
		}
		queue, item, err := readBulkJob(r, req.Queue, i, text)
		if ctx.Err() != nil { // the node stops, or the client is gone
			err = &job.UnavailableError{Reason: "the request was cut off before this job", RetryAfter: time.Second}
		}
		if err != nil {
			done(enqueueReply{}, err)
			continue
		}
		n.enqueue(queue, &item, nil, enqueueOptions{block: true}, func(enqueued enqueueReply, _ job.Position, err error) { done(enqueued, err) })
	}
	pending.Wait() // ends: publishing has its own timeout
	for i := range reply.Jobs {
		if reply.Jobs[i].Error != nil {
			reply.Refused++
		}
	}
	return reply, nil
}

func bulkItemOf(reply enqueueReply, err error) bulkItem {
	if err == nil {
		return bulkItem{ID: &reply.ID, Queue: reply.Queue, Duplicate: reply.Duplicate, Debounced: reply.Debounced}
	}
	apiErr := cluster.AsAPIError(err)
	text := strings.ToValidUTF8(apiErr.Text[:min(len(apiErr.Text), maxBulkText)], "")
	return bulkItem{Error: &bulkError{apiErr.Code, text, apiErr.RetryAfter.Milliseconds()}}
}

// readBulkJob decodes the job at index of a bulk request. The request's headers apply
// to all jobs. A job without an ID gets the request's key and its index as its ID, so
// that the whole list can be repeated safely.
func readBulkJob(r *cluster.Request, queue string, index int, text []byte) (string, enqueueRequest, error) {
	var item bulkJob
	if err := readSpec(text, &item.enqueueRequest, &item); err != nil {
		return "", enqueueRequest{}, err
	}
	if item.Queue != "" {
		queue = item.Queue
	}
	if queue == "" {
		return "", enqueueRequest{}, &job.InvalidError{Reason: "job names no queue: set queue in the job or next to jobs"}
	}
	if key := r.Header(cluster.HeaderMsgID); key != "" && item.ID == "" {
		item.ID = fmt.Sprintf("%s#%d", key, index)
	}
	_, err := item.ApplyHeaders(r.ProducerHeaders())
	return queue, item.enqueueRequest, err
}
