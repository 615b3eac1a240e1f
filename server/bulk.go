package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// maxBulkJobs is the number of jobs that one request may carry. The whole request
// must also fit a NATS message.
const maxBulkJobs = 1000

// maxBulkText is the number of bytes of an error text that one item shows, so that
// the reply always fits a NATS message.
const maxBulkText = 300

// bulk accepts many jobs at the same time, so that they share the batches of
// the lanes and of the ledger. Each job succeeds or fails independently.
func (h *Enqueue) bulk(ctx context.Context, req *api.BulkRequest) (*api.BulkReply, error) {
	if len(req.Jobs) == 0 || len(req.Jobs) > maxBulkJobs {
		return nil, &job.InvalidError{Reason: fmt.Sprintf(`%d jobs: give 1 to %d as {"queue": "mail", "jobs": [{"function": "send"}]}`, len(req.Jobs), maxBulkJobs)}
	}
	reply := &api.BulkReply{Jobs: make([]api.BulkResult, len(req.Jobs))}
	var pending sync.WaitGroup
	pending.Add(len(req.Jobs))
	for i, text := range req.Jobs {
		done := func(enqueued api.EnqueueReply, err error) {
			reply.Jobs[i] = bulkItemOf(enqueued, err)
			pending.Done()
		}
		queue, item, err := readBulkJob(call(ctx), req.Queue, i, text)
		if err == nil && !cluster.MayUse(ctx, queue) {
			err = &api.Error{Code: api.CodeForbidden, Text: fmt.Sprintf("queue %q is not one of the queues that this user may use", queue)}
		}
		if ctx.Err() != nil { // the node stops, or the client is gone
			err = &job.UnavailableError{Reason: "the request was cut off before this job", RetryAfter: time.Second}
		}
		if err != nil {
			done(api.EnqueueReply{}, err)
			continue
		}
		h.Intake.PublishAsync(intake.Job{Queue: queue, Spec: item.Spec, Key: item.ID, Quota: cluster.QuotaOf(ctx), Block: true}, func(a intake.Ack, err error) {
			done(enqueueReply(call(ctx), queue, a, err))
		})
	}
	pending.Wait() // ends: publishing has its own timeout
	for i := range reply.Jobs {
		if reply.Jobs[i].Error != nil {
			reply.Refused++
		}
	}
	return reply, nil
}

func bulkItemOf(reply api.EnqueueReply, err error) api.BulkResult {
	if err == nil {
		return api.BulkResult{ID: &reply.ID, Queue: reply.Queue, Duplicate: reply.Duplicate, Debounced: reply.Debounced}
	}
	apiErr := cluster.AsAPIError(err)
	text := apiErr.Text
	if len(text) > maxBulkText {
		text = strings.ToValidUTF8(text[:maxBulkText-len("…")], "") + "…"
	}
	return api.BulkResult{Error: &api.BulkError{Code: apiErr.Code, Message: text, RetryAfterMS: apiErr.RetryAfter.Milliseconds()}}
}

// readBulkJob decodes the job at index of a bulk request. The request's headers apply
// to all jobs. A job without an ID gets the request's key and its index as its ID, so
// that the whole list can be repeated safely.
func readBulkJob(r *cluster.Request, queue string, index int, text []byte) (string, api.EnqueueRequest, error) {
	var item api.BulkJob
	if err := readSpec(text, &item.EnqueueRequest, &item); err != nil {
		return "", api.EnqueueRequest{}, err
	}
	if item.Queue != "" {
		queue = item.Queue
	}
	if queue == "" {
		return "", api.EnqueueRequest{}, &job.InvalidError{Reason: "job names no queue: set queue in the job or next to jobs"}
	}
	if key := r.Header(subjects.HeaderMsgID); key != "" && item.ID == "" {
		item.ID = fmt.Sprintf("%s#%d", key, index)
	}
	_, err := item.ApplyHeaders(r.ProducerHeaders())
	return queue, item.EnqueueRequest, err
}
