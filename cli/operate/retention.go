package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
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
	return command.Query(env, &cobra.Command{
		Use:   "show",
		Short: "Show the retention settings, and where each comes from",
		Long: `Shows the settings in force. FROM is default, file for [retention] in the
configuration, operator for 'retention set', which overrides the file, or queue.`,
		Example: "  yardmaster retention show\n  yardmaster retention show --json",
	}, retentionTable, func([]string) (string, any) { return api.Subject("retention-show"), struct{}{} })
}

// retentionSet returns the verb 'retention set'.
func retentionSet(env *command.Env) *cobra.Command {
	return env.WithJSON(&cobra.Command{
		Use:   "set <setting>...",
		Short: "Change retention settings of the yard; those that are not given stay",
		Long: `Changes retention settings of the yard, in place of those in the configuration file. The
value "default" resets a setting to that of the file, or else to the default. What a
lowered bound excludes is removed at once and cannot be brought back.

  finished.age, finished.count            records of finished jobs in the ledger
  failed.age, failed.count, failed.bytes  dead letters
  results.age, results.bytes              results; half of the bytes are for large ones
  events.age, events.bytes                history
  logs.age, logs.count, logs.bytes        logs; count is of messages, each with some lines`,
		Example: `  yardmaster retention set finished.age=2d failed.count=5000 events.bytes=1GiB
  yardmaster retention set finished.age=default`,
		RunE: func(c *cobra.Command, settings []string) error {
			request, err := retentionflag.Parse(settings, false)
			if err != nil {
				return usererror.Usage(c, "%v", err)
			}
			return command.Request(c.Context(), env, api.Subject("retention-set"), request, retentionTable)
		},
	})
}

// retentionTable shows retention settings, one per line.
func retentionTable(w io.Writer, r *api.Retention) {
	command.Printf(w, "SETTING\tVALUE\tFROM\n")
	for i := range r.Settings {
		s := &r.Settings[i]
		from := s.From
		if s.File != nil {
			from += ", in place of the file's " + retentionText(*s.File, s.Unit)
		}
		command.Row(w, s.Name, retentionText(s.Value, s.Unit), from)
	}
	for _, q := range r.Queues {
		for i := range q.Settings {
			command.Row(w, q.Settings[i].Name, retentionText(q.Settings[i].Value, q.Settings[i].Unit), "queue "+q.Queue)
		}
	}
}

// retentionText returns the value of a setting.
func retentionText(value int64, unit string) string {
	switch {
	case value == 0 && unit == "bytes":
		return "the stream's"
	case value == 0:
		return "-"
	case unit == "ms":
		age := time.Duration(value) * time.Millisecond
		if day := 24 * time.Hour; age%day == 0 {
			return fmt.Sprintf("%dd", age/day)
		}
		return age.String()
	case unit == "bytes":
		return retentionflag.SizeText(uint64(value))
	}
	return fmt.Sprint(value)
}
