package operate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/spf13/cobra"
)

const (
	pushChunkSize = 256 << 10 // bytes
	bufferSize    = 1 << 20   // bytes
	// backupReplyTimeout bounds one request of a backup or restore. A live node
	// replies within 2 s, with "408" while it is still working.
	backupReplyTimeout = 20 * time.Second
)

// Backup returns the verb backup.
func Backup(env *command.Env) *cobra.Command {
	c := env.WithJSON(&cobra.Command{
		Use:   "backup <file>",
		Short: "Save a running yard in one file, or verify such a file",
		Long: `Saves the ledger as of now, and every stream as of moments later. The yard
keeps accepting and running jobs; until the backup is complete it only does not
reclaim space in its lanes. The file gets its name once it is complete, synced
to disk and verified. '-' writes to standard output, without verification.`,
		Example: `  yardmaster backup yard-monday.tar
  yardmaster backup - | ssh vault 'cat > yard.tar'
  yardmaster backup verify yard-monday.tar`,
		RunE: func(c *cobra.Command, args []string) error { return saveBackup(c.Context(), env, args[0]) },
	})
	c.AddCommand(env.WithJSON(&cobra.Command{
		Use:   "verify <file>",
		Short: "Verify a backup file without a yard",
		Long: `Reads the whole file, compares its parts with the checksums in it, decodes the
ledger, and checks that every stream holds what the ledger refers to. Exits
with 1 if a check fails.`,
		Example: "  yardmaster backup verify yard-monday.tar",
		RunE: func(_ *cobra.Command, args []string) error {
			plan, err := verifyFile(args[0])
			if err != nil {
				return err
			}
			return command.PrintValue(env, plan.Manifest, manifestTable)
		},
	}))
	return c
}

// saveBackup saves the yard in a temporary file beside path, verifies it and
// renames it to path. A path of "-" is standard output.
func saveBackup(ctx context.Context, env *command.Env, path string) error {
	if _, err := env.Dial(ctx); err != nil {
		return err
	}
	if path == "-" {
		out := bufio.NewWriterSize(env.Out, bufferSize)
		if err := fetchBackup(ctx, env, out); err != nil {
			return err
		}
		return writeError("standard output", out.Flush())
	}
	if _, err := os.Lstat(path); err == nil {
		return usererror.New(path+" already exists", "name another file, or remove it")
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-*")
	if err != nil {
		return writeError(path, err)
	}
	defer os.Remove(temporary.Name()) //nolint:errcheck // already renamed on success
	plan, err := saveTo(ctx, env, temporary)
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return writeError(path, err)
	}
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return writeError(path, err)
	}
	return command.PrintValue(env, plan.Manifest, manifestTable)
}

// saveTo fetches a backup into f, syncs f to disk and verifies it.
func saveTo(ctx context.Context, env *command.Env, f *os.File) (*backup.Plan, error) {
	if err := fetchBackup(ctx, env, f); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, writeError(f.Name(), err)
	}
	return verifyFile(f.Name())
}

// writeError returns the user error for a backup that could not be written to
// path; nil if err is nil.
func writeError(path string, err error) error {
	if err == nil {
		return nil
	}
	return usererror.New(fmt.Sprintf("no backup was made: %s cannot be written: %v", path, err), "free disk space, or name a file elsewhere")
}

// syncDirectory syncs a directory to disk, so that a rename in it survives a crash of
// the machine.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// fetchBackup requests a backup of the yard from the node to which env is connected, and
// writes it to w. It requests one piece after the other, so that the node never sends
// faster than w accepts.
func fetchBackup(ctx context.Context, env *command.Env, w io.Writer) error {
	reply, err := env.SendWithin(ctx, backupReplyTimeout, api.Subject("backup-begin"), struct{}{})
	if err != nil {
		return backupError("", err)
	}
	session, err := connect.Decode[api.BackupReply](reply, nil)
	if err != nil {
		return err
	}
	defer func() { // otherwise the node keeps the session until it times out
		_, _ = env.SendWithin(context.WithoutCancel(ctx), time.Second, api.Subject("backup-end"), map[string]any{"session": session.Session})
	}()

	for offset := int64(0); ; {
		piece, err := env.SendWithin(ctx, backupReplyTimeout, api.Subject("backup-read"), api.BackupRequest{Session: session.Session, Offset: offset})
		switch {
		case connect.Refused(err, api.CodeTimeout) != nil:
			continue // the node is still working
		case err != nil:
			return backupError(session.Node, err)
		case len(piece) == 0:
			return nil
		}
		if _, err := w.Write(piece); err != nil {
			return writeError("its file", err)
		}
		offset += int64(len(piece))
	}
}

// backupError returns the user error for a backup that failed with err. node is the
// node that makes the backup, or "" if it did not begin; then only a timeout needs
// another error, because a refusal already states its remedy.
func backupError(node string, err error) error {
	if node == "" && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return usererror.New("no backup was made: "+failureText(node, err), "run the command again, with any node; the yard itself is not affected")
}

// failureText describes the error of a request of a backup or restore. node is the node
// that runs it, or "" if no node has replied yet.
func failureText(node string, err error) string {
	switch refused := connect.Refused(err); {
	case refused != nil:
		return refused.Text
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, context.DeadlineExceeded) && node == "":
		return fmt.Sprintf("no node replied within %v", duration.Format(backupReplyTimeout))
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("node %s did not reply within %v", node, duration.Format(backupReplyTimeout))
	}
	return err.Error()
}

// verifyFile checks the backup file at path and returns what it contains.
func verifyFile(path string) (*backup.Plan, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, usererror.New(err.Error(), "name a file written by 'yardmaster backup'")
	}
	defer f.Close()
	plan, err := backup.Verify(bufio.NewReaderSize(f, bufferSize))
	if errors.Is(err, backup.ErrDamaged) {
		return nil, usererror.New(path+": "+err.Error(), "make another backup; nothing of this one was used")
	}
	return plan, err
}

func manifestTable(w io.Writer, m *backup.Manifest) {
	command.Printf(w, "yard\t%s, saved by %s of %v\n", m.Yard, m.Node, m.Members)
	command.Printf(w, "ledger\tentry %d, %s\n", m.Index, m.At)
	command.Printf(w, "hash\t%s\n", m.Ledger.SHA256)
	command.Printf(w, "size\t%d bytes in %d streams, %v\n", m.Size(), len(m.Streams), duration.Format(m.Ended.Sub(m.Started).Round(time.Millisecond)))
	backupQueuesTable(w, m.Queues)
}

func backupQueuesTable(w io.Writer, queues []api.BackupQueue) {
	command.Titles(w, "QUEUE\tWAITING\tDELAYED\tACTIVE\tCOMPLETED\tFAILED\tCANCELLED\tEXPIRED", "EXPIRED", "CANCELLED", "DELAYED", "COMPLETED")
	for _, q := range queues {
		command.Row(w, q.Name, q.Waiting, q.Delayed, q.Active, q.Completed, q.Failed, q.Cancelled, q.Expired)
	}
}
