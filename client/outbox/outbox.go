package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/client"
)

// A Dialect is the SQL of a database.
type Dialect string

const (
	PostgreSQL Dialect = "PostgreSQL"
	SQLite     Dialect = "SQLite"
)

// The statements have parameters that both dialects have, each once and in order, because
// some drivers of SQLite count them instead of reading their numbers.
const (
	insertRow     = `INSERT INTO yard_outbox (job) VALUES ($1)`
	selectRows    = `SELECT id, job FROM yard_outbox WHERE error IS NULL AND id > $1 ORDER BY id LIMIT $2`
	refuseRow     = `UPDATE yard_outbox SET error = $1 WHERE id = $2 AND error IS NULL`
	selectRefused = `SELECT id, job, error FROM yard_outbox WHERE error IS NOT NULL ORDER BY id`
)

// Schema returns the statements that create the table of the outbox, yard_outbox, for the
// migrations of the application. They may be repeated. Schema panics if the dialect is
// unknown.
func Schema(d Dialect) string {
	// An id must never be used again, or a forwarder that is late would delete another row.
	columns, ok := map[Dialect]string{
		// The type json keeps the text as it is; jsonb refuses some.
		PostgreSQL: `
	id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	job         json NOT NULL,
	error       text, -- why the job was refused; NULL: it is to be sent
	inserted_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP`,
		SQLite: `
	id          INTEGER PRIMARY KEY AUTOINCREMENT,
	job         TEXT NOT NULL, -- JSON
	error       TEXT, -- why the job was refused; NULL: it is to be sent
	inserted_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP`,
	}[d]
	if !ok {
		panic(fmt.Sprintf("outbox: unknown dialect %q", d))
	}
	return `CREATE TABLE IF NOT EXISTS yard_outbox (` + columns + `
);
CREATE INDEX IF NOT EXISTS yard_outbox_unsent ON yard_outbox (id) WHERE error IS NULL;
CREATE INDEX IF NOT EXISTS yard_outbox_refused ON yard_outbox (id) WHERE error IS NOT NULL;
`
}

// Tx is the transaction that a job belongs to, usually an [*sql.Tx].
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Enqueue adds a job to the outbox as part of the transaction tx, and returns the job's key:
// that of the option [client.Key], or a new one. The methods of [client.Jobs] accept
// "<queue>:<key>" as its id. The error wraps [client.ErrInvalidJob] if the cluster would refuse the
// job whatever its state.
//
// The time of the option [client.Delay] begins with this call, that of [client.Debounce]
// when the cluster accepts the job.
func Enqueue[A client.Args](ctx context.Context, tx Tx, args A, options ...client.Option) (key string, err error) {
	return EnqueueSpec(ctx, tx, client.NewSpec(args, options...))
}

// EnqueueSpec is [Enqueue] for jobs of any params.
func EnqueueSpec(ctx context.Context, tx Tx, s client.Spec) (key string, err error) {
	query, job, key, err := Statement(s)
	if err != nil {
		return "", err
	}
	if _, err := tx.ExecContext(ctx, query, job); err != nil {
		return "", fmt.Errorf("add a job of queue %s to the outbox: %w", s.Queue, err)
	}
	return key, nil
}

// Statement returns what [EnqueueSpec] executes, for transactions of other packages than
// database/sql, such as pgx: the statement, its only argument, and the key of the job.
func Statement(s client.Spec) (query, job, key string, err error) {
	if s.Key == "" {
		s.Key = "outbox-" + rand.Text()
	}
	text, err := s.MarshalJSON()
	if err != nil {
		return "", "", "", fmt.Errorf("add a job of queue %s to the outbox: %w", s.Queue, err)
	}
	return insertRow, string(text), s.Key, nil
}

// Refusal is a job that the cluster has refused.
type Refusal struct {
	ID    int64           // of the row
	Job   json.RawMessage // see [client.Spec.UnmarshalJSON]
	Error string
}

// Refused returns the jobs in the outbox that the cluster has refused, oldest first.
func Refused(ctx context.Context, db DB) ([]Refusal, error) {
	rows, err := db.QueryContext(ctx, selectRefused)
	if err != nil {
		return nil, fmt.Errorf("list the refused jobs of the outbox: %w", err)
	}
	defer rows.Close()
	var refused []Refusal
	for rows.Next() {
		var r Refusal
		var job string
		if err := rows.Scan(&r.ID, &job, &r.Error); err != nil {
			return nil, fmt.Errorf("read a refused job of the outbox: %w", err)
		}
		r.Job = json.RawMessage(job)
		refused = append(refused, r)
	}
	return refused, rows.Err()
}
