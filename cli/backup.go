package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"yardmaster/backup"
	"yardmaster/cluster"

	"github.com/spf13/cobra"
)

const (
	pushPiece = 256 << 10 // bytes
	// A node that lives answers each question about a backup within 2 s, if only
	// that it is still at it.
	pieceTime = 20 * time.Second
)

func (a *app) backupVerb() *cobra.Command {
	c := a.takesJSON(&cobra.Command{
		Use:   "backup <file>",
		Short: "Save the whole running yard in one file, or check such a file",
		Long: `Saves the yard as it is now: the ledger, and every stream as it stands moments
later. Jobs are accepted and run meanwhile; only what the lanes no longer need
stays until the backup is there. The file appears under its name when it is
whole, on disk and checked. '-' writes it to standard output, unchecked.`,
		Example: `  yardmaster backup yard-monday.tar
  yardmaster backup - | ssh vault 'cat > yard.tar'
  yardmaster backup verify yard-monday.tar`,
		Args: args("file"),
		RunE: func(c *cobra.Command, given []string) error { return a.backup(c.Context(), given[0]) },
	})
	c.AddCommand(a.takesJSON(&cobra.Command{
		Use:   "verify <file>",
		Short: "Check a backup, without any yard",
		Long: `Reads the whole file and holds it against the sums it carries, reads its ledger,
and looks that every stream holds what the ledger points to. Exits with 1 if
anything is amiss.`,
		Example: "  yardmaster backup verify yard-monday.tar",
		Args:    args("file"),
		RunE: func(_ *cobra.Command, given []string) error {
			plan, err := verifyFile(given[0])
			if err != nil {
				return err
			}
			return a.showPlan(plan)
		},
	}))
	return c
}

// backup writes beside the file and renames when all is there.
func (a *app) backup(ctx context.Context, path string) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	if path == "-" {
		out := bufio.NewWriterSize(a.Out, 1<<20)
		if err := y.fetchBackup(ctx, out); err != nil {
			return err
		}
		return unwritten("standard output", out.Flush())
	}
	if _, err := os.Lstat(path); err == nil {
		return &problem{what: path + " is there already", do: "name another file, or remove it"}
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-*")
	if err != nil {
		return unwritten(path, err)
	}
	defer os.Remove(temporary.Name()) //nolint:errcheck // gone already when all went well
	plan, err := a.saveTo(ctx, y, temporary)
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return unwritten(path, err)
	}
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return unwritten(path, err)
	}
	return a.showPlan(plan)
}

func (a *app) saveTo(ctx context.Context, y *yard, f *os.File) (*backup.Plan, error) {
	if err := y.fetchBackup(ctx, f); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, unwritten(f.Name(), err)
	}
	return verifyFile(f.Name())
}

// unwritten says that there is no backup because its file cannot be written.
func unwritten(path string, err error) error {
	if err == nil {
		return nil
	}
	return &problem{
		what: fmt.Sprintf("the backup cannot be written to %s, and is not made: %v", path, err),
		do:   "make room, or name a file elsewhere",
	}
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// fetchBackup asks for one piece after the other, so that the yard sends no
// more than is taken.
func (y *yard) fetchBackup(ctx context.Context, w io.Writer) error {
	var begun struct {
		Session string `json:"session"`
		Node    string `json:"node"`
	}
	data, err := y.askWithin(ctx, pieceTime, cluster.SubjectAPI+".backup.begin", struct{}{})
	if err != nil {
		return unmade("", err)
	}
	if err := json.Unmarshal(data, &begun); err != nil {
		return unreadable(err)
	}
	defer func() { // without it, the node waits a while for who has gone
		_, _ = y.askWithin(context.WithoutCancel(ctx), time.Second, cluster.SubjectAPI+".backup.end", map[string]any{"session": begun.Session})
	}()
	for at := int64(0); ; {
		piece, err := y.askWithin(ctx, pieceTime, cluster.SubjectAPI+".backup.read", map[string]any{"session": begun.Session, "at": at})
		var later *cluster.APIError
		switch {
		case errors.As(err, &later) && later.Code == "408":
			continue // the node is still at it
		case err != nil:
			return unmade(begun.Node, err)
		case len(piece) == 0:
			return nil
		}
		if _, err := w.Write(piece); err != nil {
			return unwritten("its file", err)
		}
		at += int64(len(piece))
	}
}

// unmade says why a backup did not come to its end. A refusal to begin says
// itself what can be done.
func unmade(node string, err error) error {
	if node == "" && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &problem{
		what: "the backup is not made: " + silence(node, err),
		do:   "take it again, from any node: the yard goes on as it did",
	}
}

// silence says what went wrong between this program and a node that was at work
// for it.
func silence(node string, err error) string {
	var refused *cluster.APIError
	switch {
	case errors.As(err, &refused):
		return refused.Text
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, context.DeadlineExceeded) && node == "":
		return fmt.Sprintf("no node answers within %v", pieceTime)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("%s, which was at it, does not answer within %v", node, pieceTime)
	}
	return err.Error()
}

func verifyFile(path string) (*backup.Plan, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, &problem{what: err.Error(), do: "name a file that 'yardmaster backup' made"}
	}
	defer f.Close()
	plan, err := backup.Verify(bufio.NewReaderSize(f, 1<<20))
	if errors.Is(err, backup.ErrDamaged) {
		return nil, &problem{what: path + ": " + err.Error(), do: "take another backup; nothing of this one was used"}
	}
	return plan, err
}

func (a *app) showPlan(p *backup.Plan) error {
	text, err := json.Marshal(p.Manifest)
	if err != nil {
		return err
	}
	return print(a, text, manifestTable)
}

func manifestTable(w io.Writer, m *backup.Manifest) {
	fmt.Fprintf(w, "yard\t%s, saved by %s of %v\n", m.Yard, m.Node, m.Members)
	fmt.Fprintf(w, "ledger\tentry %d, %s, hash %s\n", m.Index, m.At, m.Ledger.SHA256)
	fmt.Fprintf(w, "size\t%d bytes in %d streams, %v\n", m.Size(), len(m.Streams), m.Ended.Sub(m.Begun).Round(time.Millisecond))
	queuesOfBackup(w, m.Queues)
}

func queuesOfBackup(w io.Writer, queues []backup.Queue) {
	// A table of its own: its columns are others.
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "QUEUE\tWAITING\tDELAYED\tACTIVE\tCOMPLETED\tFAILED")
	for _, q := range queues {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\n", q.Name, q.Waiting, q.Delayed, q.Active, q.Completed, q.Failed)
	}
	t.Flush() // to memory
}
