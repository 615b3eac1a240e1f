package command

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// renamed is the annotation of a flag of an earlier release. Its value is the replacement.
const renamed = "yardmaster/renamed"

// Renamed lets c accept the former name of its flag name for one more release.
// [Env.NoteRenamed] notes its use.
func Renamed(c *cobra.Command, former, name string) {
	flag := *c.Flags().Lookup(name)
	flag.Name, flag.Shorthand = former, ""
	Deprecate(c, &flag, "--"+name)
}

// Deprecate lets c accept a flag of an earlier release for one more release. instead is
// the replacement, such as "--wait=false".
func Deprecate(c *cobra.Command, flag *pflag.Flag, instead string) {
	flag.Hidden, flag.Usage, flag.Annotations = true, "of earlier releases: use "+instead, map[string][]string{renamed: {instead}}
	if c.Flags().Lookup(flag.Name) == nil {
		c.Flags().AddFlag(flag)
	}
}

// NoteRenamed notes the flags of an earlier release that the command line of c has.
func (env *Env) NoteRenamed(c *cobra.Command, _ []string) {
	c.Flags().Visit(func(flag *pflag.Flag) {
		if instead := flag.Annotations[renamed]; len(instead) > 0 {
			env.NoteDeprecated("--"+flag.Name, instead[0])
		}
	})
}

// NoteDeprecated notes that what is given on the command line will be refused in the next release.
func (env *Env) NoteDeprecated(what, instead string) {
	env.Note("%s is accepted in this release only; use %s", what, instead)
}
