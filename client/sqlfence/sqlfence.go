// Package sqlfence keeps an attempt at a job that has lost its lease from overwriting what
// a later attempt has written to a database. It works with PostgreSQL and SQLite over
// database/sql.
//
// The rows that jobs change have a column for the fence of the last attempt that has
// changed them, for example
//
//	ALTER TABLE accounts ADD COLUMN fence bigint NOT NULL DEFAULT 0
package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// ErrStale is wrapped by the error of [Claim] if an attempt with a higher fence has claimed
// the row.
var ErrStale = errors.New("the row was changed by a newer attempt")

// Row is a row with a fence. The names become part of statements as they are: they must be
// constants of the program.
type Row struct {
	Table string
	Key   string // column of the key
	Value any    // of the key
	Fence string // column of the fence; "" means fence
}

// Claim makes sure that the transaction may change a row, and keeps every attempt with a
// lower fence from changing it later: it stores the fence in the row if that is not lower
// than the stored one. Claim locks the row until tx ends, so that what tx writes afterwards
// happens before the claim of another attempt, or not at all:
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	defer tx.Rollback()
//	if err := sqlfence.Claim(ctx, tx, job.Fence, sqlfence.Row{Table: "accounts", Key: "id", Value: 7}); err != nil {
//		return err
//	}
//	_, err = tx.ExecContext(ctx, "UPDATE accounts SET balance = $1 WHERE id = $2", balance, 7)
//	...
//	return tx.Commit()
//
// The error wraps [ErrStale] if the attempt is too late, and [sql.ErrNoRows] if there is no
// such row. Return it from the handler: the outcome of an attempt without a lease does not
// count, and an attempt with one is tried again with a higher fence. The latter happens if
// several jobs change the same row, because a fence grows with the attempts of all jobs, and
// a later one may be the first to claim the row.
func Claim(ctx context.Context, tx *sql.Tx, fence int64, row Row) error {
	column := row.Fence
	if column == "" {
		column = "fence"
	}
	err := claim(ctx, tx, fence, row, column)
	if err != nil {
		return fmt.Errorf("claim the row of %s with %s %v for fence %d: %w", row.Table, row.Key, row.Value, fence, err)
	}
	return nil
}

func claim(ctx context.Context, tx *sql.Tx, fence int64, row Row, column string) error {
	// Each parameter once and in order: some drivers of SQLite count them instead of
	// reading their numbers.
	result, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET %s = $1 WHERE %s = $2 AND COALESCE(%s, 0) <= $3", row.Table, column, row.Key, column),
		fence, row.Value, fence)
	if err != nil {
		return err
	}
	if changed, err := result.RowsAffected(); err != nil || changed > 0 {
		return err
	}
	var stored int64
	if err := tx.QueryRowContext(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s = $1", column, row.Table, row.Key), row.Value).Scan(&stored); err != nil {
		return err
	}
	return fmt.Errorf("%w, which has fence %d", ErrStale, stored)
}
