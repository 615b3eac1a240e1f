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

// listing writes a list that comes in parts and may be longer than memory is
// large: as a table, or as one JSON object with the list under a name.
type listing struct {
	a    *app
	head string // of the table
	name string // in the object
	n    int    // written so far
}

// each writes a part of a list. row is called for every item, whichever form
// it is shown in.
func each[T any](l *listing, part []json.RawMessage, row func(io.Writer, *T)) error {
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	if l.n == 0 && len(part) > 0 {
		fmt.Fprint(w, l.head)
	}
	for _, text := range part {
		var item T
		if err := json.Unmarshal(text, &item); err != nil {
			return unreadable(err)
		}
		row(w, &item)
	}
	w.Flush() // a bytes.Buffer takes everything
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
				return unreadable(err)
			}
		}
	}
	l.n += len(part)
	_, err := l.a.Out.Write(out.Bytes())
	return err
}

// end closes the list; nothing is what to say of an empty one.
func (l *listing) end(nothing string) (err error) {
	switch {
	case l.a.json && l.n == 0:
		_, err = fmt.Fprintf(l.a.Out, "{\n  %q: []\n}\n", l.name)
	case l.a.json:
		_, err = fmt.Fprint(l.a.Out, "\n  ]\n}\n")
	case l.n == 0:
		_, err = fmt.Fprintln(l.a.Out, nothing)
	}
	return err
}

// maxCell is how much of a text a table shows, in characters.
const maxCell = 160

// plain makes any text one line without anything that a terminal would obey.
func plain(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// oneLine makes any text fit a table's cell.
func oneLine(text string) string {
	text = plain(text)
	if runes := []rune(text); len(runes) > maxCell {
		return string(runes[:maxCell-1]) + "…"
	}
	return text
}
