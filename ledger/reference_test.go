package ledger

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// parseReference parses a command in the simplest way: the text into an any, then each
// field. ok is false if it is not a command; defined is false if the contract does
// not define the result, for an object with a duplicate field.
func parseReference(text []byte) (c Command, ok, defined bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil, false, true
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, false, true
	}
	fields, object := v.(map[string]any)
	if !object {
		return nil, false, true
	}
	// Go decodes invalid Unicode as U+FFFD, but a command must not contain any.
	if !utf8.Valid(text) || loneSurrogate.Match(pairOfSurrogates.ReplaceAll(plainEscape.ReplaceAll(text, nil), nil)) {
		return nil, false, true
	}
	defined = len(fields) == countFields(text)
	ok = true
	stringOf := func(name string) string {
		s, is := fields[name].(string)
		ok = ok && is
		return s
	}
	switch fields["command"] {
	case "AcquireAuthority":
		c = &AcquireAuthority{stringOf("owner"), stringOf("lease_id"), stringOf("leased_until")}
	case "RenewAuthority":
		c = &RenewAuthority{stringOf("owner"), stringOf("lease_id"), stringOf("leased_until")}
	case "QueueDispatch":
		q := &QueueDispatch{RequestID: stringOf("request_id"), Target: stringOf("target")}
		if fields["metadata"] != nil {
			q.Metadata, _ = json.Marshal(fields["metadata"])
		}
		c = q
	case "MarkNotified":
		c = &MarkNotified{stringOf("request_id"), stringOf("channel")}
	case "MarkDelivered":
		c = &MarkDelivered{stringOf("request_id")}
	case "MarkFailed":
		c = &MarkFailed{stringOf("request_id"), stringOf("reason")}
	case "RequestReplay":
		r := &RequestReplay{}
		if fields["cursor"] != nil {
			s := stringOf("cursor")
			r.Cursor = &s
		}
		c = r
	case "CaptureSnapshot":
		c = &CaptureSnapshot{}
	default:
		ok = false
	}
	return c, ok, defined
}

// Escapes in JSON texts; they must be matched in this order.
var (
	plainEscape      = regexp.MustCompile(`\\[^u]`)
	pairOfSurrogates = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..`)
	loneSurrogate    = regexp.MustCompile(`\\u[dD][89a-fA-F]`)
)

// countFields returns the number of fields of the object, counting duplicates.
func countFields(text []byte) (n int) {
	d := json.NewDecoder(bytes.NewReader(text))
	depth, key := 0, false
	for {
		token, err := d.Token()
		if err != nil {
			return n
		}
		switch delim, is := token.(json.Delim); {
		case is && (delim == '{' || delim == '['):
			depth++
			key = depth == 1
			continue
		case is:
			depth--
			key = depth == 1
			continue
		}
		if depth != 1 {
			continue
		}
		if key {
			n++
		}
		key = !key
	}
}

// equalJSONOption compares metadata as values: white space, the order of keys and
// escapes do not matter.
var equalJSONOption = cmp.Comparer(func(a, b json.RawMessage) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	values := [2]any{}
	for i, raw := range []json.RawMessage{a, b} {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if d.Decode(&values[i]) != nil {
			return false
		}
	}
	return cmp.Equal(values[0], values[1])
})

// checkAgainstReference compares ParseCommand with parseReference.
func checkAgainstReference(t *testing.T, text []byte) {
	t.Helper()
	want, ok, defined := parseReference(text)
	got, err := ParseCommand(text)
	switch {
	case !defined:
	case ok != (err == nil):
		t.Errorf("%q: reference accepts: %t, ParseCommand: %v", text, ok, err)
	case ok:
		if diff := cmp.Diff(want, got, equalJSONOption); diff != "" {
			t.Errorf("%q (-reference +ParseCommand):\n%s", text, diff)
		}
	}
}

var referenceCommands = []string{
	`{"command":"AcquireAuthority","owner":"","lease_id":"\u0000","leased_until":"whenever"}`,
	`{"command":"RenewAuthority","owner":"w\"1\"","lease_id":"l\\2","leased_until":"ü\ud83d\ude80"}`,
	`{"command":"QueueDispatch","request_id":"","target":"","metadata":{"b":[1.50,{"a":null}],"a":"\n"}}`,
	`{"command":"QueueDispatch","request_id":"r","target":"t","metadata":null}`, `{"command":"QueueDispatch","request_id":"r","target":"t","metadata":false}`,
	`{"command":"MarkNotified","request_id":"r","channel":"c"}`, `{"command":"MarkDelivered","request_id":"r"}`,
	`{"command":"MarkFailed","request_id":"r","reason":"\ud800"}`, `{"command":"RequestReplay"}`, `{"command":"RequestReplay","cursor":null}`,
	`{"command":"RequestReplay","cursor":""}`, `{"command":"RequestReplay","cursor":{}}`, `{"command":"CaptureSnapshot","command2":[]}`,
	` { "command" : "CaptureSnapshot" } `, `{"command":"CaptureSnapshot"}{}`, `{"command":null}`, `{"Command":"CaptureSnapshot"}`, `null`, `"x"`, `[]`, ``, `{`,
	`{"command":"MarkDelivered","request_id":null}`, `{"command":"MarkDelivered","Request_id":"r"}`, `{"command":"MarkDelivered","request_id":7}`,
	"{\"command\":\"MarkDelivered\",\"request_id\":\"\xff\"}", `{"command":"MarkDelivered","request_id":"\\ud800\ud83d\ude80"}`,
	`{"command":"MarkDelivered","request_id":"\ude80\ud83d"}`, `{"command":"CaptureSnapshot","\uDFFF":1}`,
	`{"comm\u0061nd":"MarkDelivered","request\u005fid":"r"}`, `{"command":"CaptureSnapshot","a":{"a":1},"b":["a"]}`,
}

// FuzzParseCommand_Reference compares ParseCommand with parseReference.
func FuzzParseCommand_Reference(f *testing.F) {
	for _, text := range referenceCommands {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkAgainstReference(t, text) })
}

// TestParseCommand_Reference checks that enough of referenceCommands are valid.
func TestParseCommand_Reference(t *testing.T) {
	read := 0
	for _, text := range referenceCommands {
		if _, ok, defined := parseReference([]byte(text)); !defined {
			t.Errorf("%s: result is not defined", text)
		} else if ok {
			read++
		}
	}
	if read != 15 {
		t.Errorf("%d valid commands", read)
	}
	if _, _, defined := parseReference([]byte(`{"command":"CaptureSnapshot","x":1,"x":{"y":2}}`)); defined {
		t.Error("a duplicate field is not detected")
	}
}
