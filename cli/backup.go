package cli

import (
	"bufio"
	"bytes"
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

// How long a step may take. What takes long is done by the piece, but for the
// end of a restore: there every replica has to have all.
const (
	pieceTime  = 2 * time.Minute
	finishTime = 35 * time.Minute
	pushPiece  = 256 << 10 // bytes
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

func (a *app) restoreVerb() *cobra.Command {
	var abandon bool
	c := a.takesJSON(&cobra.Command{
		Use:   "restore <file>",
		Short: "Bring a saved yard back, into one that has never accepted a job",
		Long: `Brings back into a fresh yard what 'yardmaster backup' saved: jobs, results, dead
letters, history, queues, limits, keys and cron entries. The number of members
may be another one. What ran when the backup was made runs again; workers of the
yard that was saved are refused here. The file is checked first.

A restore that was interrupted leaves a yard that accepts nothing and says so:
take it again, or give it up with --abandon.`,
		Example: `  yardmaster restore yard-monday.tar
  yardmaster restore --abandon`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, given []string) error {
			switch {
			case abandon && len(given) == 0:
				return show(c.Context(), a, cluster.SubjectAPI+".restore.abandon", struct{}{}, func(w io.Writer, _ *struct{}) {
					fmt.Fprintln(w, "given up: the yard is as fresh as it was")
				})
			case abandon:
				return usage(c, "--abandon takes no file")
			case len(given) == 0:
				return usage(c, "name the file")
			}
			return a.restore(c.Context(), given[0])
		},
	})
	c.Flags().BoolVar(&abandon, "abandon", false, "give up a restore that was interrupted")
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
		return out.Flush()
	}
	if _, err := os.Lstat(path); err == nil {
		return &problem{what: path + " is there already", do: "name another file, or remove it"}
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name()) //nolint:errcheck // gone already when all went well
	plan, err := a.saveTo(ctx, y, temporary)
	if err = errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return err
	}
	return a.showPlan(plan)
}

func (a *app) saveTo(ctx context.Context, y *yard, f *os.File) (*backup.Plan, error) {
	if err := y.fetchBackup(ctx, f); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	return verifyFile(f.Name())
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
	}
	if err := y.asks(ctx, pieceTime, "backup.begin", struct{}{}, &begun); err != nil {
		return err
	}
	defer func() { // without it, the node waits a while for who has gone
		_, _ = y.askWithin(context.WithoutCancel(ctx), time.Second, cluster.SubjectAPI+".backup.end", map[string]any{"session": begun.Session})
	}()
	for at := int64(0); ; {
		piece, err := y.askWithin(ctx, pieceTime, cluster.SubjectAPI+".backup.read", map[string]any{"session": begun.Session, "at": at})
		if err != nil {
			return err
		}
		if len(piece) == 0 {
			return nil
		}
		if _, err := w.Write(piece); err != nil {
			return err
		}
		at += int64(len(piece))
	}
}

func (y *yard) asks(ctx context.Context, d time.Duration, verb string, question, answer any) error {
	data, err := y.askWithin(ctx, d, cluster.SubjectAPI+"."+verb, question)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return unreadable(err)
	}
	return nil
}

func verifyFile(path string) (*backup.Plan, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plan, err := backup.Verify(bufio.NewReaderSize(f, 1<<20))
	if errors.Is(err, backup.ErrDamaged) {
		return nil, &problem{what: path + ": " + err.Error(), do: "take another backup; nothing of this one was used"}
	}
	return plan, err
}

// restore checks the file and sends its parts in their order.
func (a *app) restore(ctx context.Context, path string) error {
	plan, err := verifyFile(path)
	if err != nil {
		return err
	}
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	var begun struct {
		Session string `json:"session"`
	}
	if err := y.asks(ctx, pieceTime, "restore.begin", plan, &begun); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = backup.Parts(bufio.NewReaderSize(f, 1<<20), &plan.Manifest, func(name string, part io.Reader) error {
		return y.pushPart(ctx, begun.Session, name, part)
	})
	var answer []byte
	if err == nil {
		answer, err = y.askWithin(ctx, finishTime, cluster.SubjectAPI+".restore.finish", map[string]any{"session": begun.Session})
	}
	if err != nil {
		return &problem{
			what: fmt.Sprintf("the restore did not come to its end: %v", a.explain(err)),
			do:   "take it again: 'yardmaster restore " + path + "'; until then the yard accepts nothing, and 'yardmaster status' says so",
		}
	}
	return print(a, answer, restoredTable)
}

func (y *yard) pushPart(ctx context.Context, session, name string, part io.Reader) error {
	buf := make([]byte, pushPiece)
	for {
		n, err := io.ReadFull(part, buf)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return err
		}
		head, err := json.Marshal(map[string]any{"session": session, "part": name, "end": ended})
		if err != nil {
			return err
		}
		wait := pieceTime
		if ended {
			wait = finishTime // until it is made durable
		}
		asking, cancel := context.WithTimeout(ctx, wait)
		_, err = y.Request(asking, cluster.SubjectAPI+".restore.push", bytes.Join([][]byte{head, buf[:n]}, []byte("\n")))
		cancel()
		if err != nil || ended {
			return err
		}
	}
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

// restoredAnswer is how a restore ended.
type restoredAnswer struct {
	Yard       string         `json:"yard"`
	Index      uint64         `json:"index"`
	Hash       string         `json:"hash"`
	At         uint64         `json:"at"`
	Epoch      uint64         `json:"epoch"`
	FenceAbove uint64         `json:"fence_above"`
	Lanes      int            `json:"lanes"`
	Replayed   uint64         `json:"replayed"`
	Cut        uint64         `json:"cut_messages"`
	GivenBack  int            `json:"given_back"`
	Queues     []backup.Queue `json:"queues"`
	Exact      bool           `json:"exact"`
}

func restoredTable(w io.Writer, r *restoredAnswer) {
	fmt.Fprintf(w, "restored\tyard %s at entry %d, by entry %d here\n", r.Yard, r.Index, r.At)
	fmt.Fprintf(w, "ledger\thash %s: the same\n", r.Hash)
	counts := "were seen to equal the backup's"
	if !r.Exact {
		counts = "are the backup's; the yard went on before they could be compared"
	}
	fmt.Fprintf(w, "counts\t%s\n", counts)
	fmt.Fprintf(w, "running\t%d jobs ran when the backup was made, and run again\n", r.GivenBack)
	fmt.Fprintf(w, "later\t%d records accepted after the ledger was saved are folded again; %d messages about later decisions are left out\n", r.Replayed, r.Cut)
	fmt.Fprintf(w, "fences\tabove %d, epochs from %d: workers of the saved yard are refused\n", r.FenceAbove, r.Epoch)
	fmt.Fprintf(w, "lanes\t%d\n", r.Lanes)
	queuesOfBackup(w, r.Queues)
}
