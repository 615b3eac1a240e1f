package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli/connect"
)

// Table returns a writer that aligns the cells of its lines, which tabs separate.
func Table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

// Print writes a reply to standard output in one write: as indented JSON with --json,
// otherwise decoded into T and formatted by table, which writes texts, [Titles] and lines of
// cells that tabs separate.
func Print[T any](env *Env, reply []byte, table func(io.Writer, *T)) error {
	if env.JSON {
		return env.PrintJSON(reply)
	}
	value, err := connect.Decode[T](reply, nil)
	if err != nil {
		return err
	}
	return Show(env, env.Out, &value, table)
}

// Show writes a value, formatted by table as in [Print], to standard output or standard error.
func Show[T any](env *Env, out io.Writer, value *T, table func(io.Writer, *T)) error {
	var cells tables
	table(&cells, value)
	return env.writeTables(out, &cells, nil)
}

// PrintValue is like [Print], for a value that is not a reply.
func PrintValue[T any](env *Env, value any, table func(io.Writer, *T)) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return Print(env, text, table)
}

// PrintJSON writes a JSON text to standard output, indented, with its keys in
// their original order.
func (env *Env) PrintJSON(text []byte) error {
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(text), "", "  "); err != nil {
		return connect.BadReply(err)
	}
	out.WriteByte('\n')
	_, err := env.Out.Write(out.Bytes())
	return err
}

// PrintLine writes text, which is not changed, and a line break to standard output.
func (env *Env) PrintLine(text []byte) error {
	_, err := env.Out.Write(append(bytes.Clone(text), '\n'))
	return err
}

// Note writes a line about the program itself to standard error.
func (env *Env) Note(format string, args ...any) {
	Printf(env.Err, "yardmaster: "+format+"\n", args...)
}

// NoteOutdated notes that a node which reaches no majority of the members knows the yard as of a time.
func (env *Env) NoteOutdated(asOf time.Time) {
	if asOf.Year() == 1970 { // it has no log entry yet
		env.Note("the node has started again and reaches no majority of the members: until it does, it knows the yard only from its index of jobs")
		return
	}
	env.Note("the node reaches no majority of the members: it knows the yard as of %s", TimeText(&asOf))
}

// OrDash returns s, or "-" if s is empty.
func OrDash(s string) string { return cmp.Or(s, "-") }

// YesNo returns "yes" or "no".
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// TimeText returns a time in UTC, "-" for none.
func TimeText(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// SortedKeys returns the keys of m in order.
func SortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// Counts returns numbers by name as text, such as "2 cancelled, 1 ended".
func Counts(numbers map[string]int) string {
	var words []string
	for _, name := range SortedKeys(numbers) {
		words = append(words, fmt.Sprint(numbers[name], " ", name))
	}
	return strings.Join(words, ", ")
}

// List writes a list that arrives in parts, without holding all of it in
// memory: as a table, or as one JSON object that has the list under a key.
type List struct {
	Env     *Env
	Titles  string   // of the columns
	Least   []string // columns that may be left out, as for [Titles]
	Name    string   // key of the list in the object
	written int      // number of items
	layout  layout   // of the part before
}

// WriteItems writes a part of the list, whose items are JSON. It calls row for every
// item, even if the output is JSON, so that row can count the items.
func WriteItems[T any](l *List, items []json.RawMessage, row func(io.Writer, *T)) error {
	var cells tables
	var out bytes.Buffer
	if l.written == 0 && len(items) > 0 {
		Titles(&cells, l.Titles, l.Least...)
	}
	for _, text := range items {
		var item T
		if err := json.Unmarshal(text, &item); err != nil {
			return connect.BadReply(err)
		}
		row(&cells, &item)
	}
	first := l.written
	if l.written += len(items); !l.Env.JSON {
		return l.Env.writeTables(l.Env.Out, &cells, &l.layout)
	}
	for i, text := range items {
		if first+i == 0 {
			fmt.Fprintf(&out, "{\n  %q: [", l.Name)
		} else {
			out.WriteByte(',')
		}
		out.WriteString("\n    ")
		if err := json.Indent(&out, text, "    ", "  "); err != nil {
			return connect.BadReply(err)
		}
	}
	_, err := l.Env.Out.Write(out.Bytes())
	return err
}

// End completes the list after the last part. If no item was written and the output is
// not JSON, it writes noItems as a line instead of a table.
func (l *List) End(noItems string) (err error) {
	switch {
	case l.Env.JSON && l.written == 0:
		_, err = fmt.Fprintf(l.Env.Out, "{\n  %q: []\n}\n", l.Name)
	case l.Env.JSON:
		_, err = fmt.Fprint(l.Env.Out, "\n  ]\n}\n")
	case l.written == 0:
		_, err = fmt.Fprintln(l.Env.Out, noItems)
	}
	return err
}
