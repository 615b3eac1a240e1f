package jobs

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/connect"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
)

// jobResult returns the verb 'job result'.
func jobResult(env *command.Env) *cobra.Command {
	return contentVerb(env, "job-result", &cobra.Command{
		Use:   "result <job>",
		Short: "Print the result of a job, of any size",
		Long: `Prints the result of a job that has ended, as its handler returned it: JSON, or
MessagePack if JSON cannot represent it.`,
		Example: `  yardmaster job result order-7 --queue mail
  yardmaster job result mail:0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10 --output report.json`,
	})
}

// jobParams returns the verb 'job params'.
func jobParams(env *command.Env) *cobra.Command {
	return contentVerb(env, "job-params", &cobra.Command{
		Use:     "params <job>",
		Short:   "Print the params of a job, of any size",
		Long:    `Prints the params of a job as JSON or, if it has none, its payload as MessagePack.`,
		Example: `  yardmaster job params order-7 --queue mail`,
	})
}

// contentVerb turns c into a verb that prints the content that an endpoint returns in
// parts, and returns c.
func contentVerb(env *command.Env, endpoint string, c *cobra.Command) *cobra.Command {
	var queue, output string
	c = withQueue(c, &queue)
	c.Flags().StringVarP(&output, "output", "o", "", "write to this `file` instead of standard output")
	c.RunE = func(c *cobra.Command, args []string) error {
		request := command.JobRequest(args[0], queue)
		if output == "" {
			return printContent(c.Context(), env, endpoint, request, env.Out, true)
		}
		file, err := os.Create(output)
		if err != nil {
			return usererror.New(fmt.Sprintf("cannot create %s: %v", output, err), "name a file that can be written")
		}
		err = printContent(c.Context(), env, endpoint, request, file, false)
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			_ = os.Remove(output) // it is not complete
		}
		return err
	}
	return c
}

// printContent requests the parts of a content and writes them to w. With newline, JSON
// is followed by one.
func printContent(ctx context.Context, env *command.Env, endpoint string, request map[string]any, w io.Writer, newline bool) error {
	version := ""
	for offset := int64(0); ; {
		request["offset"] = offset
		part, err := connect.Decode[api.Content](env.Send(ctx, api.Subject(endpoint), request))
		if err != nil {
			return refusedFor("job", fmt.Sprint(request["id"]), err)
		}
		if version != "" && part.Version != version {
			return usererror.New(fmt.Sprintf("job %s has changed while it was read", part.ID), "repeat the command")
		}
		version = part.Version
		if _, err := w.Write(part.Data); err != nil {
			return err
		}
		offset += int64(len(part.Data))
		if offset >= part.Size || len(part.Data) == 0 {
			if newline && part.Encoding == "json" {
				_, err = io.WriteString(w, "\n")
			}
			return err
		}
	}
}
