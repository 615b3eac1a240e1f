package cli

import (
	"os"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli/usererror"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// manVerb returns the verb man, which writes the man pages of all verbs of root.
func manVerb(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "man <directory>",
		Short: "Write a man page for each verb",
		Long: `Writes a man page for each verb, such as yardmaster-job-show.1, to a directory, which is
created if it does not exist.`,
		Example: `  yardmaster man /usr/local/share/man/man1
  man yardmaster-job-show`,
		RunE: func(_ *cobra.Command, args []string) error {
			err := os.MkdirAll(args[0], 0o755)
			if err == nil {
				root.DisableAutoGenTag = true
				escapeMarkdown(root)
				date := time.Unix(0, 0) // pages of the same build are the same
				err = doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: strings.TrimSpace("yardmaster " + root.Version), Manual: "Yardmaster", Date: &date}, args[0])
			}
			if err != nil {
				return usererror.New("the man pages cannot be written: "+err.Error(), "name a directory that can be written")
			}
			return nil
		},
	}
}

// escapeMarkdown escapes the texts of c and of all verbs below it, because package doc reads them as
// Markdown: it would take an argument such as <job> for HTML and leave it out.
func escapeMarkdown(c *cobra.Command) {
	c.Use, c.Short, c.Long = strings.ReplaceAll(c.Use, "<", `\<`), strings.ReplaceAll(c.Short, "<", `\<`), strings.ReplaceAll(c.Long, "<", `\<`)
	for _, verb := range c.Commands() {
		escapeMarkdown(verb)
	}
}
