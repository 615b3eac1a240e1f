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
	"slices"
	"time"

	"yardmaster/backup"
	"yardmaster/cluster"

	"github.com/spf13/cobra"
)

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
take it again, at any node, or give it up with --abandon.`,
		Example: `  yardmaster restore yard-monday.tar
  yardmaster restore --abandon`,
		Args: args("[file]"),
		RunE: func(c *cobra.Command, given []string) error {
			switch {
			case abandon && len(given) == 0:
				return a.abandon(c.Context())
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

// bringing is a restore under way, at one node.
type bringing struct {
	*yard
	session, node string
	doing         string // as the node said last
	tell          io.Writer
	begun         bool // the yard has become empty, and waits for the backup's parts
	asked         time.Time
}

// askEvery is how long a restore's node is left without a question: it takes
// whoever asks nothing for 10 s for gone.
const askEvery = 3 * time.Second

// attended reads a backup, and lets the node hear meanwhile that somebody does:
// copies that do not count are read, too, and take a while.
type attended struct {
	io.Reader
	ctx context.Context
	b   *bringing
}

func (r *attended) Read(p []byte) (int, error) {
	if time.Since(r.b.asked) > askEvery {
		if _, err := r.b.ask(r.ctx, "wait", r.b.head(nil)); err != nil {
			return 0, err
		}
	}
	return r.Reader.Read(p)
}

// restore checks the file and sends its parts in their order.
func (a *app) restore(ctx context.Context, path string) error {
	plan, err := verifyFile(path)
	if err != nil {
		return err
	}
	again := "take it again, at any node, by 'yardmaster restore " + path + "', or give it up by 'yardmaster restore --abandon'"
	return a.bring(ctx, again, func(b *bringing) ([]byte, error) {
		text, err := json.Marshal(plan)
		if err != nil {
			return nil, err
		}
		if _, err := b.ask(ctx, "begin", text); err != nil {
			return nil, err
		}
		b.begun = true
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in := bufio.NewReaderSize(&attended{f, ctx, b}, 1<<20)
		err = backup.Parts(in, &plan.Manifest, func(name string, part io.Reader) error {
			return b.push(ctx, name, part)
		})
		if err != nil {
			return nil, err
		}
		return b.ask(ctx, "finish", b.head(nil))
	}, restoredTable)
}

// abandon leaves the yard as fresh as it was.
func (a *app) abandon(ctx context.Context) error {
	again := "give it up again, at any node, by 'yardmaster restore --abandon'"
	return a.bring(ctx, again, func(b *bringing) ([]byte, error) {
		_, err := b.ask(ctx, "abandon", []byte("{}"))
		return []byte(`{"abandoned": true}`), err
	}, func(w io.Writer, _ *restoredAnswer) { fmt.Fprintln(w, "given up: the yard is as fresh as it was") })
}

// bring does what do says to a yard and shows what came of it. Once a node has
// begun, the yard accepts nothing until it is done: again says what to type.
func (a *app) bring(ctx context.Context, again string, do func(*bringing) ([]byte, error), table func(io.Writer, *restoredAnswer)) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	b := &bringing{yard: y, tell: a.Err}
	report, err := do(b)
	if !b.begun && notBegun(err) {
		return err
	}
	if err != nil {
		return &problem{
			what: "this did not come to its end: " + silence(b.node, err),
			do:   again + "; until then the yard accepts nothing, and 'yardmaster status' says so",
		}
	}
	return print(a, report, table)
}

// notBegun tells whether a first question that failed so left the yard as it was,
// because it was refused.
func notBegun(err error) bool {
	var forbidden *cluster.ForbiddenError
	var refused *cluster.APIError
	return errors.As(err, &forbidden) ||
		errors.As(err, &refused) && slices.Contains([]string{"400", "403", "409", "413"}, refused.Code)
}

// ask puts one question and waits until what it asks for is done. The node
// answers soon, if only that it is still at it. It gives the restore's report.
func (b *bringing) ask(ctx context.Context, verb string, question []byte) ([]byte, error) {
	for {
		asking, cancel := context.WithTimeout(ctx, pieceTime)
		data, err := b.Request(asking, cluster.SubjectAPI+".restore."+verb, question)
		b.asked = time.Now()
		cancel()
		if err != nil {
			return nil, err
		}
		var answer struct {
			Session string          `json:"session"`
			Node    string          `json:"node"`
			Working string          `json:"working"`
			Report  json.RawMessage `json:"report"`
		}
		if err := json.Unmarshal(data, &answer); err != nil {
			return nil, unreadable(err)
		}
		b.session, b.node = answer.Session, answer.Node
		if answer.Working == "" {
			return answer.Report, nil
		}
		if answer.Working != b.doing {
			b.doing = answer.Working
			fmt.Fprintf(b.tell, "%s: %s\n", b.node, b.doing)
		}
		verb, question = "wait", b.head(nil)
	}
}

// head names the restore in a question, with what else it says.
func (b *bringing) head(more map[string]any) []byte {
	all := map[string]any{"session": b.session}
	for k, v := range more {
		all[k] = v
	}
	text, _ := json.Marshal(all) // plain values
	return text
}

func (b *bringing) push(ctx context.Context, name string, part io.Reader) error {
	buf := make([]byte, pushPiece)
	for {
		n, err := io.ReadFull(part, buf)
		ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !ended {
			return err
		}
		head := b.head(map[string]any{"part": name, "end": ended})
		if _, err := b.ask(ctx, "push", bytes.Join([][]byte{head, buf[:n]}, []byte("\n"))); err != nil || ended {
			return err
		}
	}
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
