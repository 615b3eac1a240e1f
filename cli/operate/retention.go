package operate

import (
	"context"
	"encoding/json"
	"io"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/retentionflag"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// RetentionVerbs returns the verb retention.
func RetentionVerbs(env *command.Env) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "retention <verb>",
		Short: "Show and change how long the yard keeps what is left of ended jobs",
		Long: `Shows and changes how long the yard keeps the records of finished jobs, dead letters,
results, history and logs: by age, number and size. What exceeds a bound is removed,
oldest first. 'yardmaster status' shows how full each stream is.`,
		Example: `  yardmaster retention show
  yardmaster retention set finished.age=2d failed.count=5000 events.bytes=1GiB
  yardmaster queue set mail --retention finished.age=30d`,
	}, retentionShow(env), retentionSet(env))
}

// retentionShow returns the verb 'retention show'.
func retentionShow(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "show [queue]",
		Short: "Show the retention settings, and where each comes from",
		Long: `Shows the settings in force: those of the yard, followed by those of queues that have
some of their own, or those of one queue. FROM is default, file for [retention] in
the configuration, operator for 'retention set', which overrides the file, or queue
for 'queue set --retention', which overrides the yard.`,
		Example: "  yardmaster retention show\n  yardmaster retention show mail",
		RunE: func(c *cobra.Command, queue []string) error {
			if len(queue) == 0 {
				return showRetention(c.Context(), env)
			}
			return command.Request(c.Context(), env, api.Subject("retention-show"), api.RetentionRequest{Queue: queue[0]}, retentionTable)
		},
	})
}

// showRetention requests the yard's settings and all pages of the queues' settings, and
// prints them as one reply.
func showRetention(ctx context.Context, env *command.Env) error {
	type page struct {
		Settings json.RawMessage   `json:"settings"`
		Queues   []json.RawMessage `json:"queues"`
		Next     string            `json:"next,omitempty"`
	}
	all := page{Queues: []json.RawMessage{}}
	err := command.Pages(ctx, env, api.Subject("retention-show"), func(p *page) (after string) {
		all.Settings, all.Queues = p.Settings, append(all.Queues, p.Queues...)
		return p.Next
	})
	if err != nil {
		return err
	}
	return command.PrintValue(env, all, retentionTable)
}

// retentionSet returns the verb 'retention set'.
func retentionSet(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "set <setting>...",
		Short: "Change retention settings of the yard; those that are not given stay",
		Long: `Changes retention settings of the yard, in place of those in the configuration file. The
value "default" resets a setting to that of the file, or else to the default. What a
lowered bound excludes is removed at once and cannot be brought back. Exits with 1 if
the settings are stored, but a stream has no space for its bytes.

  finished.age, finished.count            records of finished jobs in the ledger, of completed
                                          ones and, likewise, of the others
  failed.age, failed.count, failed.bytes  dead letters
  results.age, results.bytes              results; half of the bytes are for large ones
  events.age, events.bytes                history
  logs.age, logs.count, logs.bytes        logs; count is of messages, each with some lines
  index.age, index.count, index.bytes     ended jobs that each node finds`,
		Example: `  yardmaster retention set finished.age=2d failed.count=5000 events.bytes=1GiB
  yardmaster retention set finished.age=default`,
		RunE: func(c *cobra.Command, settings []string) error {
			request, err := retentionflag.Parse(settings, false)
			if err != nil {
				return usererror.Usage(c, "%v", err)
			}
			return setRetention(c.Context(), env, request)
		},
	})
}

// setRetention changes settings and prints those in force. It returns an error if they are
// stored, and not all streams have them.
func setRetention(ctx context.Context, env *command.Env, request *api.RetentionChange) error {
	reply, err := env.Send(ctx, api.Subject("retention-set"), request)
	if err != nil {
		return err
	}
	changed, err := connect.Decode[api.Retention](reply, nil)
	if err == nil {
		err = command.Print(env, reply, retentionTable)
	}
	if err == nil && changed.NotApplied != "" {
		err = usererror.New("the settings are stored, but not all streams have them: "+changed.NotApplied, "")
	}
	return err
}

// retentionTable shows retention settings, one per line.
func retentionTable(w io.Writer, r *api.Retention) {
	command.Titles(w, "SETTING\tVALUE\tFROM")
	for i := range r.Settings {
		s := &r.Settings[i]
		from := s.From
		switch {
		case s.File != nil:
			from += ", in place of the file's " + retentionflag.Text(*s.File, s.Unit)
		case s.Yard != nil:
			from += ", in place of the yard's " + retentionflag.Text(*s.Yard, s.Unit)
			if *s.Yard < s.Value && !strings.HasPrefix(s.Name, "finished.") {
				from += ", which is less and applies, too"
			}
		}
		command.Row(w, s.Name, retentionflag.Text(s.Value, s.Unit), from)
	}
	for _, q := range r.Queues {
		for i := range q.Settings {
			command.Row(w, q.Settings[i].Name, retentionflag.Text(q.Settings[i].Value, q.Settings[i].Unit), "queue "+q.Queue)
		}
	}
	if r.Next != "" {
		command.Printf(w, "more queues have settings of their own: 'yardmaster retention show' lists all\n")
	}
}
