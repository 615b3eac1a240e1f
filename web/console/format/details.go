package format

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
)

// cutError is the size at which a text in the details of an error is cut, in bytes. It is the largest
// size of an error that is stored, job.MaxErrorBytes, which this package may not import.
const cutError = 64 << 10

// Details returns the details of an error as HTML: a text of several lines, such as a traceback, as lines,
// and other values as a tree.
func Details(details json.RawMessage) template.HTML {
	var text string
	if json.Unmarshal(details, &text) == nil {
		return block("", text)
	}
	dec := json.NewDecoder(bytes.NewReader(details))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return Tree(details)
	}
	var blocks template.HTML
	var others []string
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return Tree(details)
		}
		if value[0] == '"' && json.Unmarshal(value, &text) == nil && strings.Contains(text, "\n") {
			blocks += block(fmt.Sprint(name), text)
			continue
		}
		quoted, _ := json.Marshal(name) // a name can always be encoded
		others = append(others, string(quoted)+":"+string(value))
	}
	if len(others) > 0 {
		blocks += Tree(json.RawMessage("{" + strings.Join(others, ",") + "}"))
	}
	return blocks
}

// block returns a text of several lines with its name.
func block(name, text string) template.HTML {
	var heading template.HTML
	if name != "" {
		heading = `<p class="dim small">` + Text(name, CutName, false) + `</p>`
	}
	return heading + `<pre class="trace">` + Text(strings.ReplaceAll(text, "\r\n", "\n"), cutError, true) + `</pre>`
}
