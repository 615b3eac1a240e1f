package node

import (
	"net/http"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
	"github.com/yardmaster-dev/yardmaster/web"
)

// routes maps every endpoint of [Node.apiService] to its HTTP method, its path, and the
// types of its request and reply. A wildcard in the path sets the request's field of the
// same name. TestRoutes fails for an endpoint without an entry.
var routes = map[string]web.Route{
	"enqueue": {
		Pattern: "POST /v1/queues/{queue}/jobs", Token: "queue", Query: "wait", Large: true,
		Request: enqueueRequest{}, Accepts: "* -blob", Reply: enqueueReply{}, Status: http.StatusAccepted, WaitReply: jobJSON{},
	},
	"call": {
		Pattern: "POST /v1/queues/{queue}/call", Token: "queue", Large: true,
		Request: callRequest{}, Accepts: "* -blob", Reply: callReply{},
	},
	"job-bulk":     {Pattern: "POST /v1/jobs/bulk", Request: bulkRequest{}, Accepts: "*", Required: "jobs", Shapes: map[string]web.Shape{"jobs": {Of: bulkJob{}, List: true, Without: "blob"}}, Reply: bulkReply{}, Large: true},
	"exec":         {Pattern: "POST /v1/exec", Request: command{}, Accepts: "*", Required: "command", Indexed: true},
	"exec-command": {Pattern: "POST /v1/exec/{command}", Token: "command", Request: command{}, Accepts: "*", Required: "command", Indexed: true},
	"snapshot":     {Pattern: "GET /v1/snapshot", Reply: ledger.Snapshot{}, Indexed: true},
	"status":       {Pattern: "GET /v1/status", Reply: Status{}, Indexed: true},

	"cluster-members": {Pattern: "GET /v1/cluster/members", Reply: membership.View{}, Indexed: true},
	"cluster-add": {
		Pattern: "PUT /v1/cluster/members/{name}", Request: membersRequest{}, Accepts: "route raft", Required: "route raft",
		Reply: membership.View{}, Status: http.StatusAccepted,
	},
	"cluster-rm": {
		Pattern: "DELETE /v1/cluster/members/{name}", Request: membersRequest{}, Reply: membership.View{}, Status: http.StatusAccepted,
	},
	"cluster-replace": {
		Pattern: "POST /v1/cluster/members/{name}/replace", Request: membersRequest{}, Accepts: "with route raft",
		Reply: membership.View{}, Status: http.StatusAccepted,
	},
	"cluster-cancel":   {Pattern: "POST /v1/cluster/cancel", Request: membersRequest{}, Reply: membership.View{}, Status: http.StatusAccepted},
	"cluster-transfer": {Pattern: "POST /v1/cluster/transfer", Request: membersRequest{}, Accepts: "to", Reply: transferReply{}, Indexed: true},
	"cluster-rebuild":  {Pattern: "POST /v1/cluster/members/{name}/rebuild", Request: retiredQuestion{}, Accepts: "stream", Reply: struct{}{}},
	"cluster-scrub":    {Pattern: "GET /v1/cluster/scrub", Reply: struct{}{}},

	"ledger-hash": {Pattern: "GET /v1/ledger/hash", Reply: ledgerHashJSON{}, Indexed: true},

	"job-list": {
		Pattern: "GET /v1/queues/{queue}/jobs", Request: jobRequest{}, Accepts: "state page page_size brief", Required: "state",
		Reply: jobPage{}, Indexed: true,
	},
	"job-show":    {Pattern: "GET /v1/jobs/{id}", Request: jobRequest{}, Accepts: "queue", Reply: jobJSON{}, Indexed: true},
	"job-explain": {Pattern: "GET /v1/jobs/{id}/explain", Request: jobRequest{}, Accepts: "queue", Reply: explanation{}, Indexed: true},
	"job-wait":    {Pattern: "GET /v1/jobs/{id}/wait", Request: jobRequest{}, Accepts: "queue timeout_ms", Reply: jobJSON{}, Indexed: true},
	"job-logs":    {Pattern: "GET /v1/jobs/{id}/logs", Request: logRequest{}, Accepts: "queue lines", Reply: logReply{}},
	"job-cancel":  {Pattern: "POST /v1/jobs/{id}/cancel", Request: jobRequest{}, Accepts: "queue reason", Reply: jobChanged{}, Indexed: true},
	"job-retry":   {Pattern: "POST /v1/jobs/{id}/retry", Request: jobRequest{}, Accepts: "queue", Reply: jobChanged{}, Indexed: true},
	"job-replay":  {Pattern: "POST /v1/jobs/{id}/replay", Request: replayRequest{}, Accepts: "*", Reply: replayReply{}, Large: true},
	"job-remove":  {Pattern: "DELETE /v1/jobs/{id}", Request: jobRequest{}, Accepts: "queue", Reply: jobRemoved{}, Indexed: true},

	"queue-list":    {Pattern: "GET /v1/queues", Reply: queueList{}, Indexed: true},
	"queue-show":    {Pattern: "GET /v1/queues/{name}", Request: queueRequest{}, Reply: queueJSON{}, Indexed: true},
	"queue-explain": {Pattern: "GET /v1/queues/{name}/explain", Request: queueRequest{}, Reply: queueExplanation{}, Indexed: true},
	"queue-add": {
		Pattern: "PUT /v1/queues/{name}", Request: queueRequest{}, Accepts: "concurrency_limit allow_job_overrides", Reply: queueJSON{}, Indexed: true,
	},
	"queue-pause":  {Pattern: "POST /v1/queues/{name}/pause", Request: queueRequest{}, Reply: queueJSON{}, Indexed: true},
	"queue-resume": {Pattern: "POST /v1/queues/{name}/resume", Request: queueRequest{}, Reply: queueJSON{}, Indexed: true},
	"queue-remove": {Pattern: "DELETE /v1/queues/{name}", Request: queueRequest{}, Reply: removedReply{}, Indexed: true},

	"cron-list": {Pattern: "GET /v1/cron", Request: cronRequest{}, Accepts: "after limit", Reply: cronPage{}, Indexed: true},
	"cron-show": {Pattern: "GET /v1/cron/{name}", Request: cronRequest{}, Reply: cronDetail{}, Indexed: true},
	"cron-add": {
		Pattern: "PUT /v1/cron/{name}", Request: cronRequest{}, Accepts: "schedule time_zone queue missed overlap replace job",
		Required: "schedule queue job", Shapes: map[string]web.Shape{"job": {Of: job.Spec{}, Without: "blob"}}, Reply: cronJSON{}, Indexed: true,
	},
	"cron-remove": {Pattern: "DELETE /v1/cron/{name}", Request: cronRequest{}, Reply: removedReply{}, Indexed: true},
	"cron-pause":  {Pattern: "POST /v1/cron/{name}/pause", Request: cronRequest{}, Reply: cronJSON{}, Indexed: true},
	"cron-resume": {Pattern: "POST /v1/cron/{name}/resume", Request: cronRequest{}, Reply: cronJSON{}, Indexed: true},
	"cron-run":    {Pattern: "POST /v1/cron/{name}/run", Request: cronRequest{}, Accepts: "new_id", Reply: enqueueReply{}},

	"dlq-list": {
		Pattern: "GET /v1/dlq", Request: deadLetterRequest{},
		Accepts: "letters jobs queue function error failed_before failed_after from until limit", Reply: deadLetterPage{},
	},
	"dlq-show": {Pattern: "GET /v1/dlq/{letters}", Request: deadLetterRequest{}, Reply: deadLetterJSON{}},
	"dlq-stats": {
		Pattern: "GET /v1/dlq/stats", Request: deadLetterRequest{},
		Accepts: "letters jobs queue function error failed_before failed_after from until", Reply: deadLetterStats{},
	},
	"dlq-requeue": {Pattern: "POST /v1/dlq/requeue", Request: deadLetterRequest{}, Accepts: "*", Reply: deadLetterResults{}},
	"dlq-remove":  {Pattern: "POST /v1/dlq/remove", Request: deadLetterRequest{}, Accepts: "* -to -keep_attempts", Reply: deadLetterResults{}},
}

// command is a command of the runtime contract; 'yardmaster schema' shows its other
// fields.
type command struct {
	Command string `json:"command"`
}
