package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cli/command"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// introspect is the argument with which the nats CLI asks a plugin for its
// commands: 'nats plugins register yard /path/to/yardmaster'.
const introspect = "--fisk-introspect"

// pluginVerb describes a command in the plugin format of the nats CLI.
type pluginVerb struct {
	Name     string       `json:"name"`
	Aliases  []string     `json:"aliases,omitempty"`
	Help     string       `json:"help"`
	HelpLong string       `json:"help_long,omitempty"`
	Version  string       `json:"version,omitempty"` // of the program, at the root
	Flags    []pluginFlag `json:"flags,omitempty"`
	Args     []pluginArg  `json:"args,omitempty"`
	Commands []pluginVerb `json:"commands,omitempty"`
}

type pluginFlag struct {
	Name        string   `json:"name"`
	Help        string   `json:"help"`
	Short       rune     `json:"short,omitempty"`
	Default     []string `json:"default,omitempty"`
	PlaceHolder string   `json:"place_holder,omitempty"`
	Hidden      bool     `json:"hidden,omitempty"`
	Boolean     bool     `json:"boolean"`
	Cumulative  bool     `json:"cumulative"`
}

type pluginArg struct {
	Name       string `json:"name"`
	Help       string `json:"help"`
	Cumulative bool   `json:"cumulative"`
}

// writeIntrospection writes the tree of commands in the plugin format.
func writeIntrospection(env *command.Env, root *cobra.Command) error {
	v := pluginCommand(root)
	v.Version = env.Program.Version
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("describe the command line: %w", err)
	}
	_, err = fmt.Fprintln(env.Out, string(text))
	return err
}

// pluginCommand describes c and its visible subcommands in the plugin format.
func pluginCommand(c *cobra.Command) pluginVerb {
	v := pluginVerb{Name: c.Name(), Aliases: c.Aliases, Help: c.Short, HelpLong: c.Long}
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "version" { // the nats CLI has its own
			v.Flags = append(v.Flags, pluginFlagOf(f))
		}
	})
	for _, subcommand := range c.Commands() {
		if !subcommand.Hidden && subcommand.Name() != "help" {
			v.Commands = append(v.Commands, pluginCommand(subcommand))
		}
	}
	// All arguments are declared as one cumulative argument, because the nats CLI
	// passes several arguments on in no particular order.
	if _, names, ok := strings.Cut(c.Use, " "); ok && len(v.Commands) == 0 {
		v.Args = []pluginArg{{Name: "args", Help: names, Cumulative: true}}
	}
	return v
}

// pluginFlagOf describes a flag in the plugin format. A default that is the zero value
// of the flag's type is left out.
func pluginFlagOf(f *pflag.Flag) pluginFlag {
	placeholder, help := pflag.UnquoteUsage(f)
	p := pluginFlag{Name: f.Name, Help: help, PlaceHolder: placeholder, Hidden: f.Hidden, Boolean: f.Value.Type() == "bool"}
	if f.Shorthand != "" {
		p.Short = rune(f.Shorthand[0])
	}
	p.Cumulative = slices.Contains([]string{"stringArray", "stringSlice", "uintSlice", "intSlice"}, f.Value.Type())
	if !slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
		p.Default = []string{f.DefValue}
	}
	return p
}
