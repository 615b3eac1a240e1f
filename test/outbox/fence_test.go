package outbox

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/sqlfence"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
)

func init() { children["worker"] = runWorker }

// deposit is a job that changes an account in both databases.
type deposit struct {
	Account int `json:"account"`
}

func (deposit) Kind() string  { return "deposit" }
func (deposit) Queue() string { return "deposits" }

// setBalance is how a handler writes: it claims the row and changes it in one transaction.
func setBalance(ctx context.Context, db *sql.DB, fence int64, account, balance int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := sqlfence.Claim(ctx, tx, fence, sqlfence.Row{Table: "accounts", Key: "id", Value: account}); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = $1 WHERE id = $2`, balance, account); err != nil {
		return err
	}
	return tx.Commit()
}

// account returns a row of accounts.
func (d *database) account(t *testing.T, id int) (balance int, fence sql.NullInt64) {
	t.Helper()
	if err := d.QueryRowContext(t.Context(), `SELECT balance, fence FROM accounts WHERE id = $1`, id).Scan(&balance, &fence); err != nil {
		t.Fatal(err)
	}
	return balance, fence
}

func (d *database) createAccounts(t *testing.T) {
	t.Helper()
	if _, err := d.ExecContext(t.Context(), `CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL, fence bigint)`); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ExecContext(t.Context(), `INSERT INTO accounts (id, balance) VALUES (1, 0), (2, 0)`); err != nil {
		t.Fatal(err)
	}
}

func TestClaim(t *testing.T) {
	onBoth(t, func(t *testing.T, d *database) {
		d.createAccounts(t)
		for _, step := range []struct {
			fence            int64
			account, balance int
			want             error
		}{
			{5, 1, 50, nil}, // the first, the column is NULL
			{5, 1, 51, nil}, // the same attempt again
			{4, 1, 40, sqlfence.ErrStale},
			{4, 2, 42, nil}, // another row
			{6, 1, 60, nil},
			{5, 1, 52, sqlfence.ErrStale},
			{7, 3, 70, sql.ErrNoRows},
		} {
			err := setBalance(t.Context(), d.DB, step.fence, step.account, step.balance)
			if !errors.Is(err, step.want) {
				t.Errorf("attempt %d on account %d: %v, want %v", step.fence, step.account, err, step.want)
			}
		}
		for id, want := range map[int]int{1: 60, 2: 42} {
			if balance, fence := d.account(t, id); balance != want || fence.Int64 != int64(want/10) {
				t.Errorf("account %d has balance %d and fence %d, want %d and %d", id, balance, fence.Int64, want, want/10)
			}
		}
	})
}

// Of two attempts that claim a row at the same time, the later one waits for the other, and
// what it writes stays, in whichever order they come.
func TestClaim_Concurrent(t *testing.T) {
	onBoth(t, func(t *testing.T, d *database) {
		d.createAccounts(t)
		const attempts = 20
		var all sync.WaitGroup
		for n := 1; n <= attempts; n++ {
			all.Go(func() {
				if err := setBalance(t.Context(), d.DB, int64(n), 1, n); err != nil && !errors.Is(err, sqlfence.ErrStale) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if balance, fence := d.account(t, 1); balance != attempts || fence.Int64 != attempts {
			t.Errorf("balance %d and fence %d, want those of attempt %d", balance, fence.Int64, attempts)
		}
	})
}

// runWorker is a worker whose handler prints its fence, waits for a file, and then writes
// without regard to its context.
func runWorker(ctx context.Context) error {
	var databases []*sql.DB
	for source := range strings.SplitSeq(os.Getenv("OUTBOX_TEST_DATABASES"), "\n") {
		driver, dsn, _ := strings.Cut(source, " ")
		db, err := sql.Open(driver, dsn)
		if err != nil {
			return err
		}
		databases = append(databases, db)
	}
	c, err := client.Connect(ctx, strings.Split(os.Getenv("OUTBOX_TEST_NODES"), ",")...)
	if err != nil {
		return err
	}
	w := c.Worker()
	w.Concurrency = 1 // so that the job is not started here again while this program is suspended
	client.Handle(w, func(ctx context.Context, job *client.Job[deposit]) (any, error) {
		ctx = context.WithoutCancel(ctx)
		fmt.Println("started", job.Fence)
		for {
			if _, err := os.Stat(os.Getenv("OUTBOX_TEST_FILE")); err == nil {
				break
			}
			backoff.Sleep(ctx, 10*time.Millisecond)
		}
		for _, db := range databases {
			err := setBalance(ctx, db, job.Fence, job.Args.Account, 1)
			fmt.Println("wrote", errors.Is(err, sqlfence.ErrStale), err)
		}
		return nil, nil
	})
	return w.Run(ctx)
}

// Worker A is suspended in the middle of a job. Its lease ends, worker B runs the job and
// writes. A wakes up, does not know what has happened, and writes: it is refused.
func TestStaleWriter(t *testing.T) {
	t.Parallel()
	cl, c := connect(t)
	databases := []*database{openSQLite(t), openPostgreSQL(t)}
	var sources []string
	for _, d := range databases {
		d.createAccounts(t)
		sources = append(sources, d.driver+" "+d.dsn)
	}
	file := filepath.Join(t.TempDir(), "write")
	a := startChild(t, "worker", "OUTBOX_TEST_NODES="+strings.Join(nodesOf(cl), ","), "OUTBOX_TEST_DATABASES="+strings.Join(sources, "\n"), "OUTBOX_TEST_FILE="+file)
	id, err := client.Enqueue(t.Context(), c, deposit{Account: 1})
	if err != nil {
		t.Fatal(err)
	}
	output := bufio.NewScanner(a.output)
	var fenceOfA int64
	if !output.Scan() {
		t.Fatal("worker A did not start the job")
	}
	if _, err := fmt.Sscanf(output.Text(), "started %d", &fenceOfA); err != nil {
		t.Fatal(output.Text(), err)
	}
	if err := a.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}

	b := c.Worker()
	client.Handle(b, func(ctx context.Context, job *client.Job[deposit]) (int64, error) {
		for _, d := range databases {
			if err := setBalance(ctx, d.DB, job.Fence, job.Args.Account, 2); err != nil {
				return 0, err
			}
		}
		return job.Fence, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	fenceOfB, err := client.Await[int64](t.Context(), c, id)
	if err != nil || fenceOfB <= fenceOfA {
		t.Fatalf("worker B has the fence %d, A has %d: %v", fenceOfB, fenceOfA, err)
	}

	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, d := range databases {
		if !output.Scan() || !strings.HasPrefix(output.Text(), "wrote true") {
			t.Errorf("the write of worker A to %s was not refused as stale: %q", d.dialect, output.Text())
		}
		if balance, fence := d.account(t, 1); balance != 2 || fence.Int64 != fenceOfB {
			t.Errorf("the account in %s has balance %d and fence %d, want 2 and %d of worker B", d.dialect, balance, fence.Int64, fenceOfB)
		}
	}
}
