// Package faults writes errors of jobs for people.
package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Line returns the type, the code and the first line of the message of an error, "" for nil.
func Line(f *job.Fault) string {
	if f == nil {
		return ""
	}
	message, _, more := strings.Cut(strings.TrimSpace(f.Message), "\n")
	if more {
		message += " …"
	}
	return prefix(f) + message
}

// prefix returns the beginning of a line for an error: its type and code, as "Timeout [http_503]: ".
func prefix(f *job.Fault) string {
	switch {
	case f.Code != "" && f.Code != f.Type:
		return strings.TrimSpace(f.Type+" ["+f.Code+"]") + ": "
	case f.Type != "":
		return f.Type + ": "
	}
	return ""
}

// Write writes an error as lines that begin with indent: its type, code and message, and its details.
func Write(w io.Writer, indent string, f *job.Fault) {
	command.Block(w, indent, prefix(f)+f.Message)
	if len(f.Details) > 0 {
		writeDetails(w, indent, f.Details)
	}
}

// writeDetails writes the details of an error: a text, or a member of an object that is a text, without
// quotes, and other values as JSON.
func writeDetails(w io.Writer, indent string, details json.RawMessage) {
	var text string
	if json.Unmarshal(details, &text) == nil {
		command.Block(w, indent, text)
		return
	}
	dec := json.NewDecoder(bytes.NewReader(details))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		var indented bytes.Buffer
		if json.Indent(&indented, details, "", "  ") != nil {
			indented.Write(details)
		}
		command.Block(w, indent, indented.String())
		return
	}
	for dec.More() {
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return
		}
		switch isText := json.Unmarshal(value, &text) == nil && value[0] == '"'; {
		case isText && strings.Contains(text, "\n"):
			command.Block(w, indent, fmt.Sprintf("%s:", name))
			command.Block(w, indent+"  ", text)
		case isText:
			command.Block(w, indent, fmt.Sprintf("%s: %s", name, text))
		default:
			command.Block(w, indent, fmt.Sprintf("%s: %s", name, value))
		}
	}
}

// WriteAttempts writes the errors of attempts, oldest first; errs has the newest first.
func WriteAttempts(w io.Writer, errs []job.AttemptError) {
	for i := len(errs) - 1; i >= 0; i-- {
		e := &errs[i]
		command.Printf(w, "error of dispatch #%d at %s on %s\n", e.N, command.TimeText(&e.At), command.OrDash(e.Node))
		Write(w, "  ", &e.Error)
	}
}
