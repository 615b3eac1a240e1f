package api

// BackupRequest names a backup or a restore that was started, and for backup-read
// the offset of the chunk.
type BackupRequest struct {
	Session string `json:"session"`
	Offset  int64  `json:"at"` // in the file, in bytes
}

// BackupReply names a backup that was started.
type BackupReply struct {
	Session string `json:"session"`
	Node    string `json:"node"` // that makes it
}

// RestoreChunk precedes a chunk of a part of a restore, as one line of JSON.
type RestoreChunk struct {
	Session string `json:"session"`
	Part    string `json:"part"`
	End     bool   `json:"end"` // the part ends with this chunk
}

// RestoreReply is the reply to all requests about a restore.
type RestoreReply struct {
	Session string `json:"session"`
	Node    string `json:"node"` // that runs it
	// Activity is what a step does that has not ended: ask restore-wait for its
	// end. "" means that it has ended.
	Activity string         `json:"working,omitempty"`
	Report   *RestoreReport `json:"report,omitempty"` // nil until the restore is finished
}

// RestoreReport is the result of a restore.
type RestoreReport struct {
	Yard       string        `json:"yard"`
	Index      uint64        `json:"index"` // of the backup's ledger
	Hash       string        `json:"hash"`  // of the backup's ledger; verified after decoding
	At         uint64        `json:"at"`    // entry of this cluster's log that installed it
	Epoch      uint64        `json:"epoch"` // of the next authority
	FenceAbove uint64        `json:"fence_above"`
	Lanes      int           `json:"lanes"`
	Replayed   uint64        `json:"replayed"` // records newer than the ledger, which are ingested now
	CutEvents  uint64        `json:"cut_messages"`
	GivenBack  int           `json:"given_back"` // jobs that were active at the time of the backup
	Queues     []BackupQueue `json:"queues"`     // counts in the backup
	Exact      bool          `json:"exact"`      // the restored ledger had the same counts before anything changed
}

// BackupQueue holds a queue's settings and its number of jobs by state in a backup.
type BackupQueue struct {
	Name      string `json:"queue"`
	Paused    bool   `json:"paused"`
	Limit     uint32 `json:"concurrency_limit"` // 0 means no limit
	Waiting   int    `json:"waiting"`
	Delayed   int    `json:"delayed"`
	Active    int    `json:"active"`
	Completed int    `json:"completed"`
	Failed    int    `json:"failed"`
	Cancelled int    `json:"cancelled"`
	Expired   int    `json:"expired,omitempty"`
}

// Jobs returns the number of all jobs.
func (q *BackupQueue) Jobs() int {
	return q.Waiting + q.Delayed + q.Active + q.Completed + q.Failed + q.Cancelled + q.Expired
}
