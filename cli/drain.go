package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"yardmaster/cluster"

	"github.com/spf13/cobra"
)

func (a *app) drainVerb() *cobra.Command {
	var limit time.Duration
	var noWait bool
	c := a.takesJSON(&cobra.Command{
		Use:   "drain <member>",
		Short: "Have a running member give its work to the others",
		Long: `Takes a member out of work, before something is done to its host: it begins no job,
sends its workers to the other members, and hands on the authority and the streams
that it leads. What runs there goes on; this command tells what that is, and waits
until nothing is left. Clients are answered as before. 'yardmaster node resume'
takes it back, and so does a start of the node.`,
		Example: `  yardmaster node drain n2
  yardmaster node drain n2 --limit 30m && ssh n2 systemctl stop yardmaster`,
		Args: args("member"),
		RunE: func(c *cobra.Command, names []string) error { return a.drain(c.Context(), names[0], limit, noWait) },
	})
	c.Flags().DurationVar(&limit, "limit", 10*time.Minute, "how `long` to wait until nothing is left")
	c.Flags().BoolVar(&noWait, "no-wait", false, "begin, tell what is left, and leave it to the member")
	return c
}

func (a *app) resumeVerb() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:     "resume <member>",
		Short:   "Have a member that was drained take work again",
		Example: "  yardmaster node resume n2",
		Args:    args("member"),
		RunE: func(c *cobra.Command, names []string) error {
			err := show(c.Context(), a, cluster.NodeSubject(names[0], "resume"), struct{}{}, func(w io.Writer, r *resumeAnswer) {
				fmt.Fprintf(w, "%s takes work again; it was drained since %s\n", r.Node, moment(&r.Drained))
			})
			return aboutNode(err, names[0])
		},
	})
}

type resumeAnswer struct {
	Node    string    `json:"node"`
	Drained time.Time `json:"drained_at"`
}

// drainAnswer is how far a drain is.
type drainAnswer struct {
	Done      bool     `json:"done"`
	Running   int      `json:"running"`
	Leads     []string `json:"leads"`
	Authority bool     `json:"authority"`
	Jobs      []struct {
		ID      string    `json:"id"`
		Channel string    `json:"channel"`
		Since   time.Time `json:"since"`
	} `json:"jobs"`
}

// left says what a member that is drained still has; its jobs are shown by how
// long they run.
func (d *drainAnswer) left() string {
	var all []string
	if d.Authority {
		all = append(all, "it holds the authority")
	}
	if len(d.Leads) > 0 {
		all = append(all, "it leads "+strings.Join(d.Leads, ", "))
	}
	if d.Running > 0 {
		text := fmt.Sprintf("jobs that run there: %d", d.Running)
		for i, j := range d.Jobs {
			if i == 3 {
				text += ", …"
				break
			}
			text += fmt.Sprintf(", %s by %s since %s", j.ID, j.Channel, moment(&j.Since))
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// How a drain is followed.
const (
	drainEvery = time.Second
	drainDown  = 30 * time.Second // without an answer
)

func (a *app) drain(ctx context.Context, member string, limit time.Duration, noWait bool) error {
	y, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer y.Close()
	answer, err := y.ask(ctx, cluster.NodeSubject(member, "drain"), struct{}{})
	if err != nil {
		return aboutNode(err, member)
	}
	var d drainAnswer
	if err := json.Unmarshal(answer, &d); err != nil {
		return unreadable(err)
	}
	began, answered, told := time.Now(), time.Now(), ""
	for !d.Done && !noWait {
		if left := d.left(); left != told {
			told = left
			fmt.Fprintln(a.Err, left)
		}
		if time.Since(began) > limit {
			return &problem{what: fmt.Sprintf("%s is drained, and after %s not done: %s", member, limit, d.left()),
				do: "wait longer, or stop it: what still runs there is given back and runs elsewhere; 'yardmaster job cancel <job>' ends a job"}
		}
		select {
		case <-time.After(min(drainEvery, limit)):
		case <-ctx.Done():
			return &problem{what: member + " stays drained", do: "'yardmaster node resume " + member + "' takes that back"}
		}
		var s struct{ Drain *drainAnswer }
		answer, err = y.ask(ctx, cluster.NodeSubject(member, "status"), struct{}{})
		switch {
		case err == nil && json.Unmarshal(answer, &s) != nil:
			return unreadable(errors.New("no status"))
		case err == nil && s.Drain == nil:
			return &problem{what: member + " takes work again: somebody has resumed it, or it has started anew"}
		case err == nil:
			d, answered = *s.Drain, time.Now()
		case time.Since(answered) > drainDown:
			return aboutNode(err, member)
		}
	}
	return a.drained(member, &d)
}

// drained tells how a drain stands in the end.
func (a *app) drained(member string, d *drainAnswer) error {
	if a.json {
		text, err := json.Marshal(d)
		if err != nil {
			return err
		}
		return a.printJSON(text)
	}
	if left := d.left(); !d.Done {
		_, err := fmt.Fprintf(a.Out, "%s is drained; left: %s\n", member, left)
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s is drained and has nothing left: it may be stopped; 'yardmaster node resume %s' or a start has it take work again\n", member, member)
	return err
}

// aboutNode says of a refusal what to look at: the text of a conflict says
// itself what would let it.
func aboutNode(err error, member string) error {
	var refused *cluster.APIError
	switch {
	case errors.As(err, &refused) && refused.Code == "409":
		return &problem{what: refused.Text}
	case errors.Is(err, cluster.ErrNobodyAnswers):
		return &problem{what: "no node " + member + " answers", do: "'yardmaster status' lists the members, and which are up"}
	}
	return err
}
