package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/yardmaster-dev/yardmaster/cli/connect"
)

// List writes a list that arrives in parts, without holding all of it in
// memory: as a table, or as one JSON object that has the list under a key.
type List struct {
	Env  *Env
	Head string // header line of the table
	Name string // key of the list in the object
	n    int    // items written
}

// WriteItems writes a part of the list. It calls row for every item, even if the
// output is JSON.
func WriteItems[T any](l *List, part []json.RawMessage, row func(io.Writer, *T)) error {
	var out bytes.Buffer
	w := Table(&out)
	if l.n == 0 && len(part) > 0 {
		fmt.Fprint(w, l.Head)
	}
	for _, text := range part {
		var item T
		if err := json.Unmarshal(text, &item); err != nil {
			return connect.BadReply(err)
		}
		row(w, &item)
	}
	w.Flush() // a bytes.Buffer does not fail
	if l.Env.JSON {
		out.Reset()
		for i, text := range part {
			if l.n+i == 0 {
				fmt.Fprintf(&out, "{\n  %q: [", l.Name)
			} else {
				out.WriteByte(',')
			}
			out.WriteString("\n    ")
			if err := json.Indent(&out, text, "    ", "  "); err != nil {
				return connect.BadReply(err)
			}
		}
	}
	l.n += len(part)
	_, err := l.Env.Out.Write(out.Bytes())
	return err
}

// End completes the list. If it is empty, the table is the text empty.
func (l *List) End(empty string) (err error) {
	switch {
	case l.Env.JSON && l.n == 0:
		_, err = fmt.Fprintf(l.Env.Out, "{\n  %q: []\n}\n", l.Name)
	case l.Env.JSON:
		_, err = fmt.Fprint(l.Env.Out, "\n  ]\n}\n")
	case l.n == 0:
		_, err = fmt.Fprintln(l.Env.Out, empty)
	}
	return err
}
