// Package outbox enqueues jobs as part of a database transaction: a job is enqueued if and
// only if the transaction commits. It works with PostgreSQL and SQLite over database/sql.
//
// [Enqueue] writes the job into a table of the application's database, [Schema], as part of
// a transaction. A [Forwarder], which runs in the same program or in another one, sends the
// jobs of committed transactions to the cluster and deletes them from the table:
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	_, err = tx.ExecContext(ctx, `INSERT INTO orders ...`)
//	...
//	key, err := outbox.Enqueue(ctx, tx, SendMail{To: "ann"})
//	...
//	err = tx.Commit()
//	...
//	forwarder.Notify()
//
// # Guarantees
//
// A job whose transaction has committed is never lost: its row is deleted once the cluster
// has accepted the job, that is, once a quorum has it on disk.
//
// It becomes one job, however often it is sent: after a crash, or by several forwarders at
// once. Each row has a key, and the cluster makes one job of all requests with the same key
// in the same queue, for as long as it keeps the record of the job, and 24 hours longer. If
// the cluster has removed the records of more than 1,000,000 other jobs since, it recognizes the key for
// at least 10 minutes: a cluster that finishes 1,000 jobs per second does so for about 17 minutes. The
// cluster also decides only once about a row whose job was merged into another one, because of its
// debounce key, or whose unique key another job held; these times begin with the decision. A
// second job is therefore possible if
//
//   - a forwarder stops between sending a job and deleting its row,
//   - no forwarder runs, or reaches the database and the cluster, until the cluster no longer
//     recognizes the key, and
//   - the job has no unique key.
//
// Where that matters, keep records for longer (yardmaster queue set --retention
// finished.count=...), or give the job a unique key with a long time, which the cluster
// holds independently of its records, a million at most:
//
//	outbox.Enqueue(ctx, tx, args, client.Key(k), client.Unique(k, 30*24*time.Hour), client.OnConflict(client.UseExisting))
//
// The handler may run more than once in any case, as that of every job.
//
// # Refused jobs
//
// A job that the cluster refuses for good stays in the table with the error, and does not
// keep other jobs waiting. [Refused] lists those jobs. To send one again, or to give it up:
//
//	UPDATE yard_outbox SET error = NULL WHERE id = 7
//	DELETE FROM yard_outbox WHERE id = 7
//
// A job whose unique or rate limit key is held by another one is refused, too, unless its
// unique key has the option client.OnConflict(client.UseExisting). A job that was refused because of
// its unique key is refused again for as long as the cluster recognizes the key of its row. To enqueue
// it after all, give it up and call [Enqueue] once more.
package outbox
