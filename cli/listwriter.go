package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// listWriter writes a list that arrives in parts, without holding all of it in
// memory: as a table, or as one JSON object that has the list under a key.
type listWriter struct {
	a    *app
	head string // header line of the table
	name string // key of the list in the object
	n    int    // items written
}

// writeItems writes a part of the list. It calls row for every item, even if the
// output is JSON.
func writeItems[T any](l *listWriter, part []json.RawMessage, row func(io.Writer, *T)) error {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	if l.n == 0 && len(part) > 0 {
		fmt.Fprint(w, l.head)
	}
	for _, text := range part {
		var item T
		if err := json.Unmarshal(text, &item); err != nil {
			return badReplyError(err)
		}
		row(w, &item)
	}
	w.Flush() // a bytes.Buffer does not fail
	if l.a.json {
		out.Reset()
		for i, text := range part {
			if l.n+i == 0 {
				fmt.Fprintf(&out, "{\n  %q: [", l.name)
			} else {
				out.WriteByte(',')
			}
			out.WriteString("\n    ")
			if err := json.Indent(&out, text, "    ", "  "); err != nil {
				return badReplyError(err)
			}
		}
	}
	l.n += len(part)
	_, err := l.a.Out.Write(out.Bytes())
	return err
}

// end completes the list. If it is empty, the table is the text empty.
func (l *listWriter) end(empty string) (err error) {
	switch {
	case l.a.json && l.n == 0:
		_, err = fmt.Fprintf(l.a.Out, "{\n  %q: []\n}\n", l.name)
	case l.a.json:
		_, err = fmt.Fprint(l.a.Out, "\n  ]\n}\n")
	case l.n == 0:
		_, err = fmt.Fprintln(l.a.Out, empty)
	}
	return err
}

// maxCell is the longest text in a table's cell, in characters.
const maxCell = 160

// sanitize returns text as one line without control characters, which a terminal
// might interpret.
func sanitize(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// fitCell returns text sanitized and cut to maxCell characters.
func fitCell(text string) string {
	text = sanitize(text)
	if runes := []rune(text); len(runes) > maxCell {
		return string(runes[:maxCell-1]) + "…"
	}
	return text
}
