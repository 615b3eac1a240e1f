package node

import (
	"net/http"

	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/membership"
	"yardmaster/web"
)

// routes gives every endpoint of [Node.service] its method, its path, and the
// JSON that comes and goes there. A wildcard sets the question's field of its
// name. An endpoint without a line here fails a test.
var routes = map[string]web.Route{
	"enqueue": {
		Pattern: "POST /v1/queues/{queue}/jobs", Token: "queue", Query: "wait", Large: true,
		Question: enqueueRequest{}, Takes: "* -blob", Answer: enqueueReply{}, Status: http.StatusAccepted, Waited: jobJSON{},
	},
	"call": {
		Pattern: "POST /v1/queues/{queue}/call", Token: "queue", Large: true,
		Question: callRequest{}, Takes: "* -blob", Answer: callReply{},
	},
	"job-bulk":     {Pattern: "POST /v1/jobs/bulk", Question: bulkQuestion{}, Takes: "*", Required: "jobs", Shapes: map[string]web.Shape{"jobs": {Of: bulkJob{}, List: true, Without: "blob"}}, Answer: bulkReply{}, Large: true},
	"exec":         {Pattern: "POST /v1/exec", Question: command{}, Takes: "*", Required: "command", Indexed: true},
	"exec-command": {Pattern: "POST /v1/exec/{command}", Token: "command", Question: command{}, Takes: "*", Required: "command", Indexed: true},
	"snapshot":     {Pattern: "GET /v1/snapshot", Answer: ledger.Snapshot{}, Indexed: true},
	"status":       {Pattern: "GET /v1/status", Answer: Status{}, Indexed: true},

	"cluster-members": {Pattern: "GET /v1/cluster/members", Answer: membership.View{}, Indexed: true},
	"cluster-add": {
		Pattern: "PUT /v1/cluster/members/{name}", Question: membersQuestion{}, Takes: "route raft", Required: "route raft",
		Answer: membership.View{}, Status: http.StatusAccepted,
	},
	"cluster-rm": {
		Pattern: "DELETE /v1/cluster/members/{name}", Question: membersQuestion{}, Answer: membership.View{}, Status: http.StatusAccepted,
	},
	"cluster-replace": {
		Pattern: "POST /v1/cluster/members/{name}/replace", Question: membersQuestion{}, Takes: "with route raft",
		Answer: membership.View{}, Status: http.StatusAccepted,
	},
	"cluster-cancel":   {Pattern: "POST /v1/cluster/cancel", Question: membersQuestion{}, Answer: membership.View{}, Status: http.StatusAccepted},
	"cluster-transfer": {Pattern: "POST /v1/cluster/transfer", Question: membersQuestion{}, Takes: "to", Answer: steppedDown{}, Indexed: true},
	"cluster-rebuild":  {Pattern: "POST /v1/cluster/members/{name}/rebuild", Question: rebuildQuestion{}, Takes: "stream", Required: "stream", Answer: RebuildStatus{}, Status: http.StatusAccepted},
	"cluster-scrub":    {Pattern: "GET /v1/cluster/scrub", Answer: scrubAnswer{}},

	"ledger-hash": {Pattern: "GET /v1/ledger/hash", Answer: proofJSON{}, Indexed: true},

	"job-list": {
		Pattern: "GET /v1/queues/{queue}/jobs", Question: jobQuestion{}, Takes: "state page page_size brief", Required: "state",
		Answer: jobPage{}, Indexed: true,
	},
	"job-show":    {Pattern: "GET /v1/jobs/{id}", Question: jobQuestion{}, Takes: "queue", Answer: jobJSON{}, Indexed: true},
	"job-explain": {Pattern: "GET /v1/jobs/{id}/explain", Question: jobQuestion{}, Takes: "queue", Answer: explanation{}, Indexed: true},
	"job-wait":    {Pattern: "GET /v1/jobs/{id}/wait", Question: jobQuestion{}, Takes: "queue timeout_ms", Answer: jobJSON{}, Indexed: true},
	"job-logs":    {Pattern: "GET /v1/jobs/{id}/logs", Question: logQuestion{}, Takes: "queue lines", Answer: logReply{}},
	"job-cancel":  {Pattern: "POST /v1/jobs/{id}/cancel", Question: jobQuestion{}, Takes: "queue reason", Answer: jobChanged{}, Indexed: true},
	"job-retry":   {Pattern: "POST /v1/jobs/{id}/retry", Question: jobQuestion{}, Takes: "queue", Answer: jobChanged{}, Indexed: true},
	"job-replay":  {Pattern: "POST /v1/jobs/{id}/replay", Question: replayQuestion{}, Takes: "*", Answer: replayReply{}, Large: true},
	"job-remove":  {Pattern: "DELETE /v1/jobs/{id}", Question: jobQuestion{}, Takes: "queue", Answer: jobRemoved{}, Indexed: true},

	"queue-list":    {Pattern: "GET /v1/queues", Answer: queueList{}, Indexed: true},
	"queue-show":    {Pattern: "GET /v1/queues/{name}", Question: queueQuestion{}, Answer: queueJSON{}, Indexed: true},
	"queue-explain": {Pattern: "GET /v1/queues/{name}/explain", Question: queueQuestion{}, Answer: queueExplanation{}, Indexed: true},
	"queue-add": {
		Pattern: "PUT /v1/queues/{name}", Question: queueQuestion{}, Takes: "concurrency_limit allow_job_overrides", Answer: queueJSON{}, Indexed: true,
	},
	"queue-pause":  {Pattern: "POST /v1/queues/{name}/pause", Question: queueQuestion{}, Answer: queueJSON{}, Indexed: true},
	"queue-resume": {Pattern: "POST /v1/queues/{name}/resume", Question: queueQuestion{}, Answer: queueJSON{}, Indexed: true},
	"queue-remove": {Pattern: "DELETE /v1/queues/{name}", Question: queueQuestion{}, Answer: removed{}, Indexed: true},

	"cron-list": {Pattern: "GET /v1/cron", Question: cronQuestion{}, Takes: "after limit", Answer: cronPage{}, Indexed: true},
	"cron-show": {Pattern: "GET /v1/cron/{name}", Question: cronQuestion{}, Answer: cronShown{}, Indexed: true},
	"cron-add": {
		Pattern: "PUT /v1/cron/{name}", Question: cronQuestion{}, Takes: "schedule time_zone queue missed overlap replace job",
		Required: "schedule queue job", Shapes: map[string]web.Shape{"job": {Of: job.Spec{}, Without: "blob"}}, Answer: cronJSON{}, Indexed: true,
	},
	"cron-remove": {Pattern: "DELETE /v1/cron/{name}", Question: cronQuestion{}, Answer: removed{}, Indexed: true},
	"cron-pause":  {Pattern: "POST /v1/cron/{name}/pause", Question: cronQuestion{}, Answer: cronJSON{}, Indexed: true},
	"cron-resume": {Pattern: "POST /v1/cron/{name}/resume", Question: cronQuestion{}, Answer: cronJSON{}, Indexed: true},
	"cron-run":    {Pattern: "POST /v1/cron/{name}/run", Question: cronQuestion{}, Takes: "new_id", Answer: enqueueReply{}},

	"dlq-list": {
		Pattern: "GET /v1/dlq", Question: letterQuestion{},
		Takes: "letters jobs queue function error failed_before failed_after from until limit", Answer: letterPage{},
	},
	"dlq-show": {Pattern: "GET /v1/dlq/{letters}", Question: letterQuestion{}, Answer: letterJSON{}},
	"dlq-stats": {
		Pattern: "GET /v1/dlq/stats", Question: letterQuestion{},
		Takes: "letters jobs queue function error failed_before failed_after from until", Answer: letterStats{},
	},
	"dlq-requeue": {Pattern: "POST /v1/dlq/requeue", Question: letterQuestion{}, Takes: "*", Answer: lettersChanged{}},
	"dlq-remove":  {Pattern: "POST /v1/dlq/remove", Question: letterQuestion{}, Takes: "* -to -keep_attempts", Answer: lettersChanged{}},
}

// command is one of the runtime contract's; 'yardmaster schema' shows what goes
// beside its name.
type command struct {
	Command string `json:"command"`
}
