package jobs

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// SchemaVerbs returns the verbs of 'schema' about the schemas of payloads.
func SchemaVerbs(env *command.Env) []*cobra.Command {
	return []*cobra.Command{schemaSet(env), schemaShow(env), schemaList(env), schemaRemove(env)}
}

// schemaSet returns the verb 'schema set'.
func schemaSet(env *command.Env) *cobra.Command {
	var file string
	warn := false
	c := env.WithJSON(&cobra.Command{
		Use:   "set <queue> [function]",
		Short: "Set the JSON Schema that the payloads of a queue's function must match",
		Long: `Sets the JSON Schema (draft 2020-12) that the params of jobs must match. From then on, a
job that does not match is refused, with the place in its params; one that was
published straight to yard.jobs.<queue> becomes a dead letter. Jobs that were
accepted before are not checked.

The function "*" stands for all functions of the queue without a schema of their own,
and for jobs without a function. Without the argument, the schema is for jobs
without a function. With --warn, jobs that do not match are accepted and counted.`,
		Example: `  yardmaster schema set mail send --file send.json
  yardmaster schema set mail send --file send.json --warn
  yardmaster schema set mail '*' --file any.json`,
		RunE: func(c *cobra.Command, args []string) error {
			if file == "" {
				return usererror.Usage(c, "--file is missing: name the file with the schema, or - for standard input")
			}
			text, err := readText(env, file)
			if err != nil {
				return err
			}
			if !json.Valid(text) {
				return usererror.Usage(c, "--file %s: not valid JSON", file)
			}
			request := api.SchemaChange{SchemaRequest: schemaRequest(args), Schema: text, Warn: warn}
			return command.Request(c.Context(), env, api.Subject("schema-set"), request, schemaRow)
		},
	})
	c.Flags().StringVar(&file, "file", "", "`file` with the schema; - for standard input")
	c.Flags().BoolVar(&warn, "warn", false, "accept jobs that do not match, and count them")
	return c
}

// schemaRequest returns the request about the schema that the arguments name.
func schemaRequest(args []string) api.SchemaRequest {
	request := api.SchemaRequest{Queue: args[0]}
	if len(args) > 1 {
		request.Function = args[1]
	}
	return request
}

// schemaShow returns the verb 'schema show'.
func schemaShow(env *command.Env) *cobra.Command {
	return command.Query(env, &cobra.Command{
		Use:   "show <queue> [function]",
		Short: "Show the JSON Schema of a queue's function, and what did not match it",
		Long: `Shows a schema, and how many payloads did not match its present version: at the nodes,
since they have started. With --json the schema can be used by programs.`,
		Example: "  yardmaster schema show mail send\n  yardmaster schema show mail '*' --json",
	}, schemaText, func(args []string) (subject string, body any) {
		return api.Subject("schema-show"), schemaRequest(args)
	})
}

// schemaList returns the verb 'schema list'.
func schemaList(env *command.Env) *cobra.Command {
	request := api.SchemaListRequest{}
	c := command.Query(env, &cobra.Command{
		Use: "list",
		Args: func(c *cobra.Command, args []string) error { // a queue, as in earlier releases
			if len(args) > 1 {
				return usererror.Usage(c, "%q is one argument too many", args[1])
			}
			return nil
		},
		Aliases: []string{"ls"},
		Short:   "List the JSON Schemas of payloads, and how many did not match",
		Example: "  yardmaster schema list\n  yardmaster schema list --queue mail",
	}, schemasTable, func(args []string) (subject string, body any) {
		if len(args) > 0 {
			env.NoteDeprecated("the queue as an argument", "--queue")
			request.Queue = args[0]
		}
		return api.Subject("schema-list"), request
	})
	c.Flags().StringVarP(&request.Queue, "queue", "q", "", "only schemas of this `queue`")
	return c
}

// schemaRemove returns the verb 'schema rm'.
func schemaRemove(env *command.Env) *cobra.Command {
	return command.Query(env, &cobra.Command{
		Use:     "rm <queue> [function]",
		Aliases: []string{"remove", "del", "delete"},
		Short:   "Remove the JSON Schema of a queue's function",
		Example: "  yardmaster schema rm mail send",
	}, func(w io.Writer, s *api.SchemaRemoved) {
		command.Printf(w, "%s\t%s\tschema removed\n", s.Queue, functionName(s.Function))
	}, func(args []string) (subject string, body any) {
		return api.Subject("schema-remove"), schemaRequest(args)
	})
}

// functionName returns the function of a schema as a table shows it.
func functionName(function string) string {
	if function == "" {
		return "(none)"
	}
	return function
}

// schemasTable shows schemas, one per line.
func schemasTable(w io.Writer, list *api.SchemaList) {
	command.Titles(w, "QUEUE\tFUNCTION\tVERSION\tMODE\tCHANGED\tREFUSED\tREJECTED\tWARNED", "CHANGED", "WARNED", "REJECTED", "REFUSED")
	for i := range list.Schemas {
		s := &list.Schemas[i]
		mode := "enforced"
		if s.Warn {
			mode = "warn"
		}
		command.Row(w, s.Queue, functionName(s.Function), s.Version, mode, s.Changed.Format(time.RFC3339), s.Refused, s.Rejected, s.Warned)
	}
	if len(list.Missing) > 0 {
		command.Printf(w, "without the counts of %s, which did not answer\n", strings.Join(list.Missing, ", "))
	}
}

func schemaRow(w io.Writer, s *api.Schema) {
	schemasTable(w, &api.SchemaList{Schemas: []api.Schema{*s}, Missing: s.Missing})
}

// schemaText shows a schema with its text.
func schemaText(w io.Writer, s *api.Schema) {
	schemaRow(w, s)
	if last := s.Last; last != nil {
		command.Printf(w, "\nlast at %s: %s\n", last.At.Format(time.RFC3339), violationText(last))
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if encoder.Encode(s.Schema) == nil {
		command.Printf(w, "\n")
		for line := range strings.Lines(text.String()) {
			command.Printf(w, "%s\n", strings.TrimSuffix(line, "\n"))
		}
	}
}

func violationText(v *api.SchemaViolation) string {
	return fmt.Sprintf("params%s: %s", v.Path, v.Reason)
}

// queueSchemas shows the schemas of a queue below its row.
func queueSchemas(w io.Writer, q *api.Queue) {
	if len(q.Schemas) == 0 {
		return
	}
	command.Printf(w, "\n")
	list := &api.SchemaList{}
	for i := range q.Schemas {
		list.Schemas = append(list.Schemas, api.Schema{Queue: q.Name, QueueSchema: q.Schemas[i]})
	}
	schemasTable(w, list)
	for i := range q.Schemas {
		if s := &q.Schemas[i]; s.Last != nil {
			command.Printf(w, "%s, last at %s: %s\n", functionName(s.Function), s.Last.At.Format(time.RFC3339), violationText(s.Last))
		}
	}
}
