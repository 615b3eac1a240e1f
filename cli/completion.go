package cli

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completionVerb returns the verb completion, which prints the script for a shell.
func completionVerb(env *command.Env, root *cobra.Command) *cobra.Command {
	shells := map[string]func() error{
		"bash": func() error { return root.GenBashCompletionV2(env.Out, true) }, "zsh": func() error { return root.GenZshCompletion(env.Out) },
		"fish": func() error { return root.GenFishCompletion(env.Out, true) }, "powershell": func() error { return root.GenPowerShellCompletionWithDesc(env.Out) },
	}
	return &cobra.Command{
		Use:   "completion <shell>",
		Short: "Print a script that lets bash, zsh, fish or powershell complete command lines",
		Example: `  yardmaster completion bash > /etc/bash_completion.d/yardmaster
  yardmaster completion zsh > "${fpath[1]}/_yardmaster"
  yardmaster completion fish > ~/.config/fish/completions/yardmaster.fish
  source <(yardmaster completion bash)`,
		ValidArgs: command.SortedKeys(shells),
		RunE: func(c *cobra.Command, args []string) error {
			script, ok := shells[args[0]]
			if !ok {
				return usererror.Usage(c, "shell is %q: must be one of %s", args[0], strings.Join(c.ValidArgs, ", "))
			}
			return script()
		},
	}
}

// completionTimeout limits how long a shell waits for names from the yard.
const completionTimeout = time.Second

// nameLists maps the name of an argument or a flag in the help, such as queue in <queue>, to the
// endpoint that lists its values and to the key of the list in the reply.
var nameLists = map[string]struct{ endpoint, list string }{
	"queue": {"queue-list", "queues"}, "queues": {"queue-list", "queues"},
	"entry": {"cron-list", "entries"}, "limit": {"limit-list", "limits"}, "member": {"cluster-members", "members"},
}

// pathNames are the names in the help of arguments and flags that take a path.
var pathNames = []string{"file", "files", "directory", "dir", "path", "paths"}

// argumentNames matches the arguments in a Use line, such as <queue>, [job]... and <key=weight>.
var argumentNames = regexp.MustCompile(`[<\[]+([a-z]+)[^>\]]*[>\]]+`)

// addCompletion lets a shell complete the arguments and flags of c and of all verbs below it: with
// names from the yard, with files where a path is expected, and with nothing otherwise.
func addCompletion(env *command.Env, c *cobra.Command) {
	for _, verb := range c.Commands() {
		addCompletion(env, verb)
	}
	var names []string
	for _, found := range argumentNames.FindAllStringSubmatch(c.Use, -1) {
		names = append(names, found[1])
	}
	repeats := strings.HasSuffix(c.Use, "...")
	if c.ValidArgsFunction == nil && c.ValidArgs == nil && (!c.HasSubCommands() || len(names) > 0 && names[0] != "verb") {
		c.ValidArgsFunction = func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			at := len(args)
			if repeats {
				at = min(at, len(names)-1)
			}
			if at >= len(names) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return complete(c.Context(), env, names[at], prefix)
		}
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		name, _ := pflag.UnquoteUsage(f)
		if f.Name == "queue" {
			name = "queue"
		}
		if f.Value.Type() == "bool" || slices.Contains(pathNames, name) || strings.Contains(f.Usage, "@") { // @file
			return
		}
		// An error means that the verb has completed the flag itself.
		_ = c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return complete(c.Context(), env, name, prefix)
		})
	})
}

// complete returns the values of an argument or a flag that begin with prefix. name is its name in the
// help. If no yard answers, complete returns no values.
func complete(ctx context.Context, env *command.Env, name, prefix string) (values []string, _ cobra.ShellCompDirective) {
	if slices.Contains(pathNames, name) {
		return nil, cobra.ShellCompDirectiveDefault
	}
	source, ok := nameLists[name]
	if !ok {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	type page map[string]json.RawMessage
	_ = command.Pages(ctx, env, api.Subject(source.endpoint), func(p *page) (after string) { // an error leaves what was read
		var items []struct{ Name string }
		_ = json.Unmarshal((*p)[source.list], &items)
		for _, item := range items {
			if strings.HasPrefix(item.Name, prefix) {
				values = append(values, item.Name)
			}
		}
		_ = json.Unmarshal((*p)["next"], &after)
		return after
	})
	return values, cobra.ShellCompDirectiveNoFileComp
}
