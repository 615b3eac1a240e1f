package operate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil // for --abandon
			}
			return command.CheckArgs(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case abandon && len(args) == 0:
				return abandonRestore(c.Context(), env)
			case abandon:
				return usererror.Usage(c, "--abandon takes no file")
			case len(args) == 0:
				return usererror.Usage(c, "name the file")
			}
			return restore(c.Context(), env, args[0])
		},
	})
	c.Flags().BoolVar(&abandon, "abandon", false, "give up an interrupted restore")
	return c
}

// restoreClient is the client of one restore, which runs on one node.
type restoreClient struct {
	send        func(ctx context.Context, timeout time.Duration, subject string, request any) ([]byte, error)
	session     string // "" before the first reply
	node        string // that runs the restore; "" before the first reply
	activity    string // of the node, as it last reported it
	progress    io.Writer
	started     bool // the node waits for the parts of the backup
	lastRequest time.Time
}

// keepAliveInterval is the longest time between two requests of a restore. A node
// ends a session after 10 s without a request.
const keepAliveInterval = 3 * time.Second

// keepAliveReader reads a backup file and keeps the session alive meanwhile.
// Skipping the parts of the file that are not sent may take longer than the
// session's timeout.
type keepAliveReader struct {
	io.Reader
	ctx    context.Context
	client *restoreClient
}

// Read reads from the file. It first sends a request if the last one is too long ago.
func (r *keepAliveReader) Read(p []byte) (int, error) {
	if time.Since(r.client.lastRequest) > keepAliveInterval {
		if _, err := r.client.request(r.ctx, "wait", r.client.header(nil)); err != nil {
			return 0, err
		}
	}
	return r.Reader.Read(p)
}

// restore verifies the backup file at path, restores it and shows the node's report.
func restore(ctx context.Context, env *command.Env, path string) error {
	plan, err := verifyFile(path)
	if err != nil {
		return err
	}
	client, err := newRestoreClient(ctx, env)
	if err != nil {
		return err
	}
	report, err := client.sendBackup(ctx, path, plan)
	if err != nil {
		return client.explain(err, "repeat 'yardmaster restore "+path+"', with any node, or give it up with 'yardmaster restore --abandon'")
	}
	return command.Print(env, report, restoredTable)
}

// abandonRestore gives up an interrupted restore and leaves a fresh yard.
func abandonRestore(ctx context.Context, env *command.Env) error {
	client, err := newRestoreClient(ctx, env)
	if err != nil {
		return err
	}
	if _, err := client.request(ctx, "abandon", []byte("{}")); err != nil {
		return client.explain(err, "repeat 'yardmaster restore --abandon', with any node")
	}
	return command.Print(env, []byte(`{"abandoned": true}`), func(w io.Writer, _ *struct{}) { command.Printf(w, "given up; the yard is fresh again\n") })
}

// newRestoreClient connects to a yard and returns a client for one restore.
func newRestoreClient(ctx context.Context, env *command.Env) (*restoreClient, error) {
	if _, err := env.Dial(ctx); err != nil {
		return nil, err
	}
	return &restoreClient{send: env.SendWithin, progress: env.Err}, nil
}

// explain returns the user error for a restore that failed with err. Once a restore has
// begun the yard accepts nothing until it is complete, so the remedy is then retryHint. If
// the first request failed without a refusal, only the yard knows whether it has begun.
func (b *restoreClient) explain(err error, retryHint string) error {
	if !b.started && refusedToStart(err) {
		return err
	}
	if !b.started {
		return usererror.New("the restore did not complete: "+failureText(b.node, err),
			"'yardmaster status' shows whether it has begun: if not, the yard is unchanged, and you can repeat the command; if it has, "+retryHint+"; until then the yard accepts nothing")
	}
	return usererror.New("the restore did not complete: "+failureText(b.node, err), retryHint+"; until then the yard accepts nothing")
}

// sendBackup starts the restore with a plan, sends the parts of the backup file at path
// in order, and returns the report of the restore as JSON.
func (b *restoreClient) sendBackup(ctx context.Context, path string, plan *backup.Plan) ([]byte, error) {
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
	in := bufio.NewReaderSize(&keepAliveReader{f, ctx, b}, bufferSize)
	err = backup.Parts(in, &plan.Manifest, func(name string, part io.Reader) error {
		return b.push(ctx, name, part)
	})
	if err != nil {
		return nil, err
	}
	return b.request(ctx, "finish", b.header(nil))
}

// refusedToStart reports whether err, of the first request, is a refusal, after
// which the yard is unchanged.
func refusedToStart(err error) bool {
	_, forbidden := errors.AsType[*cluster.ForbiddenError](err)
	return forbidden || connect.Refused(err, api.CodeInvalid, api.CodeForbidden, api.CodeConflict, api.CodeTooLarge) != nil
}

// request sends one request and waits until the node has executed it. A node that is
// still working replies with its activity, which request shows; request then asks again.
// It returns the report of the restore, which is nil for all requests but the last.
func (b *restoreClient) request(ctx context.Context, verb string, body []byte) ([]byte, error) {
	for {
		reply, err := connect.Decode[struct {
			api.RestoreReply
			Report json.RawMessage `json:"report"` // printed as it is
		}](b.send(ctx, backupReplyTimeout, api.Subject("restore-"+verb), body))
		b.lastRequest = time.Now()
		if err != nil {
			return nil, err
		}
		b.session, b.node = reply.Session, reply.Node
		if reply.Activity == "" {
			return reply.Report, nil
		}
		if reply.Activity != b.activity {
			b.activity = reply.Activity
			command.Printf(b.progress, "%s: %s\n", b.node, b.activity)
		}
		verb, body = "wait", b.header(nil)
	}
}

// header returns the JSON header of a request: the session and further fields.
func (b *restoreClient) header(further map[string]any) []byte {
	fields := map[string]any{"session": b.session}
	maps.Copy(fields, further)
	text, _ := json.Marshal(fields) // cannot fail for these values
	return text
}

// push sends one part of the backup in chunks. Each request is a line with the header,
// followed by the bytes of the chunk.
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

// restoredTable shows the report of a restore.
func restoredTable(w io.Writer, r *api.RestoreReport) {
	command.Printf(w, "restored\tyard %s as of entry %d, at entry %d here\n", r.Yard, r.Index, r.At)
	command.Printf(w, "ledger\thash %s: identical\n", r.Hash)
	counts := "compared: identical to the backup"
	if !r.Exact {
		counts = "not compared: the yard changed before that was possible"
	}
	command.Printf(w, "counts\t%s\n", counts)
	command.Printf(w, "running\t%d jobs ran when the backup was made, and run again\n", r.GivenBack)
	command.Printf(w, "later\t%d records accepted after the ledger was saved are ingested again; %d messages about later decisions are dropped\n", r.Replayed, r.CutEvents)
	command.Printf(w, "fences\tabove %d, epochs from %d: workers of the saved yard are refused\n", r.FenceAbove, r.Epoch)
	command.Printf(w, "lanes\t%d\n", r.Lanes)
	backupQueuesTable(w, r.Queues)
}
