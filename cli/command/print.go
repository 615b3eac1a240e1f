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
	"unicode"

	"github.com/yardmaster-dev/yardmaster/cli/connect"
)

// Table returns a writer that aligns the cells of its lines, which tabs separate.
func Table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }

// Print writes a reply to standard output in one write: indented with --json,
// otherwise decoded into T and formatted by table.
func Print[T any](env *Env, reply []byte, table func(io.Writer, *T)) error {
	if env.JSON {
		return env.PrintJSON(reply)
	}
	v, err := connect.Decode[T](reply, nil)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := Table(&out)
	table(w, &v)
	w.Flush() // a bytes.Buffer does not fail
	_, err = env.Out.Write(out.Bytes())
	return err
}

// PrintValue is like [Print], for a value that is not a reply.
func PrintValue[T any](env *Env, v any, table func(io.Writer, *T)) error {
	text, err := json.Marshal(v)
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

// Note writes a line about the program itself to standard error.
func (env *Env) Note(format string, args ...any) {
	fmt.Fprintf(env.Err, "yardmaster: "+format+"\n", args...)
}

// Rows returns a function that writes a named value to w, unless it is empty.
func Rows(w io.Writer) func(name, value string) {
	return func(name, value string) {
		if value != "" && value != "-" && value != "null" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
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

// Counts returns numbers by name as text, like "2 cancelled, 1 ended".
func Counts(numbers map[string]int) string {
	var words []string
	for _, name := range SortedKeys(numbers) {
		words = append(words, fmt.Sprint(numbers[name], " ", name))
	}
	return strings.Join(words, ", ")
}

// maxCell is the longest text in a table's cell, in characters.
const maxCell = 160

// Sanitize returns text as one line without control characters, which a terminal
// might interpret.
func Sanitize(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// FitCell returns text sanitized and cut to maxCell characters.
func FitCell(text string) string {
	text = Sanitize(text)
	if runes := []rune(text); len(runes) > maxCell {
		return string(runes[:maxCell-1]) + "…"
	}
	return text
}
