package operate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/cluster"

	"github.com/spf13/cobra"
)

// Restore returns the verb restore.
func Restore(env *command.Env) *cobra.Command {
	var abandon bool
	c := env.WithJSON(&cobra.Command{
		Use:   "restore <file>",
		Short: "Restore a backup into a fresh yard",
		Long: `Restores a backup into a yard that has never accepted a job: jobs, results, dead
letters, history, queues, limits, keys and cron entries. The number of members may
differ. Jobs that ran when the backup was made run again; workers of the saved
yard are refused. The file is verified first.

After an interrupted restore the yard accepts nothing, and 'yardmaster status' says
so: repeat the restore, with any node, or give it up with --abandon.`,
		Example: `  yardmaster restore yard-monday.tar
  yardmaster restore --abandon`,
		Args: func(c *cobra.Command, given []string) error {
			if len(given) == 0 {
				return nil // for --abandon
			}
			return command.CheckArgs(c, given)
		},
		RunE: func(c *cobra.Command, given []string) error {
			switch {
			case abandon && len(given) == 0:
				return abandonRestore(c.Context(), env)
			case abandon:
				return usererror.Usage(c, "--abandon takes no file")
			case len(given) == 0:
				return usererror.Usage(c, "name the file")
			}
			return restore(c.Context(), env, given[0])
		},
	})
	c.Flags().BoolVar(&abandon, "abandon", false, "give up an interrupted restore")
	return c
}

// restoreClient is the client of one restore, which runs on one node.
type restoreClient struct {
	send          func(ctx context.Context, timeout time.Duration, subject string, request any) ([]byte, error)
	session, node string
	activity      string // last one that the node reported
	progress      io.Writer
	started       bool // the node waits for the parts of the backup
	lastRequest   time.Time
}

// keepAliveInterval is the longest time between two requests of a restore. A node
// ends a session after 10 s without a request.
const keepAliveInterval = 3 * time.Second

// keepAliveReader reads a backup file and keeps the session alive meanwhile.
// Skipping the parts of the file that are not sent may take longer than the
// session's timeout.
type keepAliveReader struct {
	io.Reader
	ctx context.Context
	b   *restoreClient
}

func (r *keepAliveReader) Read(p []byte) (int, error) {
	if time.Since(r.b.lastRequest) > keepAliveInterval {
		if _, err := r.b.request(r.ctx, "wait", r.b.header(nil)); err != nil {
			return 0, err
		}
	}
	return r.Reader.Read(p)
}

// restore verifies the file and sends its parts in order.
func restore(ctx context.Context, env *command.Env, path string) error {
	plan, err := verifyFile(path)
	if err != nil {
		return err
	}
	retryHint := "repeat 'yardmaster restore " + path + "', with any node, or give it up with 'yardmaster restore --abandon'"
	return runRestore(ctx, env, retryHint, func(b *restoreClient) ([]byte, error) {
		text, err := json.Marshal(plan)
		if err != nil {
			return nil, err
		}
		if _, err := b.request(ctx, "begin", text); err != nil {
			return nil, err
		}
		b.started = true
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in := bufio.NewReaderSize(&keepAliveReader{f, ctx, b}, 1<<20)
		err = backup.Parts(in, &plan.Manifest, func(name string, part io.Reader) error {
			return b.push(ctx, name, part)
		})
		if err != nil {
			return nil, err
		}
		return b.request(ctx, "finish", b.header(nil))
	}, restoredTable)
}

// abandonRestore gives up an interrupted restore and leaves a fresh yard.
func abandonRestore(ctx context.Context, env *command.Env) error {
	retryHint := "repeat 'yardmaster restore --abandon', with any node"
	return runRestore(ctx, env, retryHint, func(b *restoreClient) ([]byte, error) {
		_, err := b.request(ctx, "abandon", []byte("{}"))
		return []byte(`{"abandoned": true}`), err
	}, func(w io.Writer, _ *api.RestoreReport) { fmt.Fprintln(w, "given up; the yard is fresh again") })
}

// runRestore calls do with a connection and shows the report that it returns.
// Once a restore has begun, the yard accepts nothing until it is complete;
// retryHint is then the remedy of an error.
func runRestore(ctx context.Context, env *command.Env, retryHint string, do func(*restoreClient) ([]byte, error), table func(io.Writer, *api.RestoreReport)) error {
	if _, err := env.Dial(ctx); err != nil {
		return err
	}
	b := &restoreClient{send: env.SendWithin, progress: env.Err}
	report, err := do(b)
	if !b.started && refusedToStart(err) {
		return err
	}
	if err != nil {
		return usererror.New("the restore did not complete: "+failureText(b.node, err), retryHint+"; until then the yard accepts nothing")
	}
	return command.Print(env, report, table)
}

// refusedToStart reports whether err, of the first request, is a refusal, after
// which the yard is unchanged.
func refusedToStart(err error) bool {
	_, forbidden := errors.AsType[*cluster.ForbiddenError](err)
	return forbidden || connect.Refused(err, api.CodeInvalid, api.CodeForbidden, api.CodeConflict, api.CodeTooLarge) != nil
}

// request sends one request and waits until the node has done it; a node that is
// still working replies with its activity, which is shown. request returns the
// report of the restore, which only the last request has.
func (b *restoreClient) request(ctx context.Context, verb string, body []byte) ([]byte, error) {
	for {
		answer, err := connect.Decode[struct {
			api.RestoreReply
			Report json.RawMessage `json:"report"` // printed as it is
		}](b.send(ctx, backupReplyTimeout, api.Subject("restore-"+verb), body))
		b.lastRequest = time.Now()
		if err != nil {
			return nil, err
		}
		b.session, b.node = answer.Session, answer.Node
		if answer.Activity == "" {
			return answer.Report, nil
		}
		if answer.Activity != b.activity {
			b.activity = answer.Activity
			fmt.Fprintf(b.progress, "%s: %s\n", b.node, b.activity)
		}
		verb, body = "wait", b.header(nil)
	}
}

// header returns the JSON header of a request: the session and more fields.
func (b *restoreClient) header(more map[string]any) []byte {
	all := map[string]any{"session": b.session}
	maps.Copy(all, more)
	text, _ := json.Marshal(all) // cannot fail for these values
	return text
}

// push sends one part of the backup in chunks.
func (b *restoreClient) push(ctx context.Context, name string, part io.Reader) error {
	buf := make([]byte, pushChunkSize)
	for {
		n, err := io.ReadFull(part, buf)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return err
		}
		header := b.header(map[string]any{"part": name, "end": ended})
		if _, err := b.request(ctx, "push", bytes.Join([][]byte{header, buf[:n]}, []byte("\n"))); err != nil || ended {
			return err
		}
	}
}

func restoredTable(w io.Writer, r *api.RestoreReport) {
	fmt.Fprintf(w, "restored\tyard %s as of entry %d, at entry %d here\n", r.Yard, r.Index, r.At)
	fmt.Fprintf(w, "ledger\thash %s: identical\n", r.Hash)
	counts := "compared: identical to the backup"
	if !r.Exact {
		counts = "not compared: the yard changed before that was possible"
	}
	fmt.Fprintf(w, "counts\t%s\n", counts)
	fmt.Fprintf(w, "running\t%d jobs ran when the backup was made, and run again\n", r.GivenBack)
	fmt.Fprintf(w, "later\t%d records accepted after the ledger was saved are ingested again; %d messages about later decisions are dropped\n", r.Replayed, r.CutEvents)
	fmt.Fprintf(w, "fences\tabove %d, epochs from %d: workers of the saved yard are refused\n", r.FenceAbove, r.Epoch)
	fmt.Fprintf(w, "lanes\t%d\n", r.Lanes)
	backupQueuesTable(w, r.Queues)
}
