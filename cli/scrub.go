package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) clusterScrub() *cobra.Command {
	return a.takesJSON(&cobra.Command{
		Use:   "scrub",
		Short: "Show what members found when they last read their copies of the streams",
		Long: `Shows, for each member and stream, when its node last read its copy from the disk,
how many messages it found there, with whose copies it was compared, and what was
wrong. [scrub] says how often that is done.`,
		Example: "  yardmaster cluster scrub\n  yardmaster cluster scrub --json",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			return show(c.Context(), a, clusterSubject("scrub"), struct{}{}, scrubTable)
		},
	})
}

// scrubsAnswer is what the members found in their copies.
type scrubsAnswer struct {
	Reports []scrubReport `json:"reports"`
	Unheard []string      `json:"unheard"`
}

type scrubReport struct {
	Node    string        `json:"node"`
	Results []scrubResult `json:"results"`
	Rebuild *rebuildState `json:"rebuild"`
}

// rebuildState is a copy that is made anew, or was last.
type rebuildState struct {
	Stream  string `json:"stream"`
	Step    string `json:"step"`
	Outcome string `json:"outcome"`
	Failed  bool   `json:"failed"`
}

type scrubResult struct {
	Stream   string    `json:"stream"`
	At       time.Time `json:"at"`
	Messages uint64    `json:"messages"`
	With     []string  `json:"with"`
	Error    string    `json:"error"`
	Findings []struct {
		Kind  string `json:"kind"`
		Count int    `json:"count"`
		Which string `json:"which"`
	} `json:"findings"`
}

func scrubTable(w io.Writer, s *scrubsAnswer) {
	fmt.Fprint(w, "STREAM\tMEMBER\tREAD\tMESSAGES\tCOMPARED WITH\tWRONG\n")
	for _, report := range s.Reports {
		for i := range report.Results {
			r := &report.Results[i]
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", r.Stream, report.Node, moment(&r.At), r.Messages, or(strings.Join(r.With, ", ")), or(r.wrong()))
		}
	}
	for _, report := range s.Reports {
		if r := report.Rebuild; r != nil {
			fmt.Fprintf(w, "%s makes its copy of %s anew: %s\n", report.Node, r.Stream, cmp.Or(r.Step, r.Outcome))
		}
	}
	for _, member := range s.Unheard {
		fmt.Fprintf(w, "%s was not heard\n", member)
	}
}

func (r *scrubResult) wrong() string {
	if r.Error != "" {
		return r.Error
	}
	var all []string
	for _, f := range r.Findings {
		all = append(all, fmt.Sprintf("%s %d: %s", f.Kind, f.Count, f.Which))
	}
	return strings.Join(all, "; ")
}

// scrubLine is what the node that answers found in its own copies.
func scrubLine(s *scrubState) string {
	switch {
	case s.Ended.IsZero():
		return "not yet"
	case s.Wrong > 0:
		return fmt.Sprintf("%d messages in %d copies, %s: %d WRONG", s.Messages, s.Copies, moment(&s.Ended), s.Wrong)
	}
	return fmt.Sprintf("%d messages in %d copies, %s: all right", s.Messages, s.Copies, moment(&s.Ended))
}

type scrubState struct {
	Ended    time.Time `json:"ended"`
	Copies   int       `json:"copies"`
	Messages uint64    `json:"messages"`
	Wrong    int       `json:"wrong"`
}
