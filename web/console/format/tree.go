package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
)

// Limits of the tree of a JSON value.
const (
	maxTreeDepth = 12
	maxTreeNodes = 400
	openTree     = 2 // levels that are open at first
	cutValue     = 2000
)

// treeWriter writes a JSON value as nested lists that open and close without scripts.
type treeWriter struct {
	decoder *json.Decoder
	out     strings.Builder
	nodes   int
}

// Tree returns a JSON value as HTML: objects and lists as elements that open and close. Large
// values are cut, with a note. A text that is no JSON is Text as it is.
func Tree(text json.RawMessage) template.HTML {
	if len(bytes.TrimSpace(text)) == 0 {
		return `<span class="none">none</span>`
	}
	if !json.Valid(text) {
		return Text(string(text), CutBlock, true)
	}
	w := &treeWriter{decoder: json.NewDecoder(bytes.NewReader(text))}
	w.decoder.UseNumber()
	w.value(0)
	return template.HTML(w.out.String()) //nolint:gosec // texts are escaped by Text
}

// value writes the next value of the decoder, and reports whether there may be more: not if
// the tree has as many nodes as it may have.
func (w *treeWriter) value(depth int) bool {
	token, err := w.decoder.Token()
	if err != nil {
		return false
	}
	w.nodes++
	switch t := token.(type) {
	case json.Delim:
		return w.container(t, depth)
	case string:
		fmt.Fprintf(&w.out, `<span class="json-string">"%s"</span>`, Text(t, cutValue, true))
	case nil:
		w.out.WriteString(`<span class="json-null">null</span>`)
	default:
		fmt.Fprintf(&w.out, `<span class="json-number">%s</span>`, Text(fmt.Sprint(t), CutName, false))
	}
	return true
}

// container writes an object or a list, whose first token the decoder has returned.
func (w *treeWriter) container(open json.Delim, depth int) bool {
	isObject := open == '{'
	if !w.decoder.More() {
		_, _ = w.decoder.Token()
		w.out.WriteString(map[bool]string{true: "{}", false: "[]"}[isObject])
		return true
	}
	kind := map[bool]string{true: "object", false: "list"}[isObject]
	fmt.Fprintf(&w.out, `<details class="json"%s><summary>%s</summary><ul>`, map[bool]string{true: " open"}[depth < openTree], kind)
	going := true
	for i := 0; going && w.decoder.More(); i++ {
		if w.nodes >= maxTreeNodes || depth >= maxTreeDepth {
			w.out.WriteString(`<li class="cut">… more, see the whole value</li>`)
			going = false
			break
		}
		w.out.WriteString("<li>")
		if isObject {
			name, _ := w.decoder.Token()
			fmt.Fprintf(&w.out, `<span class="json-key">%s</span> `, Text(fmt.Sprint(name), CutName, false))
		} else {
			fmt.Fprintf(&w.out, `<span class="json-index">%d</span> `, i)
		}
		going = w.value(depth + 1)
		w.out.WriteString("</li>")
	}
	w.out.WriteString("</ul></details>")
	if going {
		_, _ = w.decoder.Token()
	}
	return going
}

// Indented returns a JSON value on several lines.
func Indented(text json.RawMessage) string {
	var out bytes.Buffer
	if json.Indent(&out, text, "", "  ") != nil {
		return string(text)
	}
	return out.String()
}
