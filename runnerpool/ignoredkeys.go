package runnerpool

// IgnoredKeys maps the keys of [rrq] that RRQ knows and that have no effect here
// to the reason. They are accepted, so that RRQ's users can keep their table.
var IgnoredKeys = map[string]string{
	"redis_dsn":                              "a yard has no Redis: jobs lie in JetStream",
	"default_dlq_name":                       "a yard has one place for dead letters, which know their queues",
	"default_lock_timeout_extension_seconds": "there are no locks: the ledger decides who runs a job",
	"default_poll_delay_seconds":             "nothing is polled: jobs are handed to runners as they come",
	"expected_job_ttl":                       "there are no locks: the ledger decides who runs a job",
	"worker_health_check_interval_seconds":   "nodes tell of their health by themselves; see 'yardmaster status'",
	"worker_health_check_ttl_buffer_seconds": "nodes tell of their health by themselves; see 'yardmaster status'",
	"worker_concurrency":                     "pool_size and max_in_flight of the runners say it",
	"capture_runner_output":                  "what runners print always goes to the node's log and to the job's",
	"watch":                                  "runners are not started anew when files change",
}
