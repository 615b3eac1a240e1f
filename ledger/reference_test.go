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

// reference reads a command the plain way: the whole text as any value, then
// each field by hand. ok is false if it is no command; sure is false where the
// contract says nothing: an object that names a field twice.
func reference(text []byte) (c Command, ok, sure bool) {
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
	// Go reads as U+FFFD what is no Unicode, which a command must not hold.
	if !utf8.Valid(text) || loneSurrogate.Match(pairOfSurrogates.ReplaceAll(plainEscape.ReplaceAll(text, nil), nil)) {
		return nil, false, true
	}
	sure = len(fields) == countFields(text)
	ok = true
	text1 := func(name string) string {
		s, is := fields[name].(string)
		ok = ok && is
		return s
	}
	switch fields["command"] {
	case "AcquireAuthority":
		c = &AcquireAuthority{text1("owner"), text1("lease_id"), text1("leased_until")}
	case "RenewAuthority":
		c = &RenewAuthority{text1("owner"), text1("lease_id"), text1("leased_until")}
	case "QueueDispatch":
		q := &QueueDispatch{RequestID: text1("request_id"), Target: text1("target")}
		if fields["metadata"] != nil {
			q.Metadata, _ = json.Marshal(fields["metadata"])
		}
		c = q
	case "MarkNotified":
		c = &MarkNotified{text1("request_id"), text1("channel")}
	case "MarkDelivered":
		c = &MarkDelivered{text1("request_id")}
	case "MarkFailed":
		c = &MarkFailed{text1("request_id"), text1("reason")}
	case "RequestReplay":
		r := &RequestReplay{}
		if fields["cursor"] != nil {
			s := text1("cursor")
			r.Cursor = &s
		}
		c = r
	case "CaptureSnapshot":
		c = &CaptureSnapshot{}
	default:
		ok = false
	}
	return c, ok, sure
}

// What a text's escapes are, in the order in which they can be told apart.
var (
	plainEscape      = regexp.MustCompile(`\\[^u]`)
	pairOfSurrogates = regexp.MustCompile(`\\u[dD][89abAB]..\\u[dD][c-fC-F]..`)
	loneSurrogate    = regexp.MustCompile(`\\u[dD][89a-fA-F]`)
)

// countFields is how many fields the object names, repeated ones too.
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

// sameJSON compares metadata as values: white space, the order of keys and the
// way a character is escaped say nothing.
var sameJSON = cmp.Comparer(func(a, b json.RawMessage) bool {
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

// compareWithReference reads a text in both ways.
func compareWithReference(t *testing.T, text []byte) {
	t.Helper()
	want, ok, sure := reference(text)
	got, err := ParseCommand(text)
	switch {
	case !sure:
	case ok != (err == nil):
		t.Errorf("%q: the reference says %t, ParseCommand %v", text, ok, err)
	case ok:
		if diff := cmp.Diff(want, got, sameJSON); diff != "" {
			t.Errorf("%q (-reference +ParseCommand):\n%s", text, diff)
		}
	}
}

var referenceTexts = []string{
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

// FuzzParseCommand_Reference holds the parser against a plain reading.
func FuzzParseCommand_Reference(f *testing.F) {
	for _, text := range referenceTexts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { compareWithReference(t, text) })
}

// TestReference makes sure that the comparison has something to compare.
func TestReference(t *testing.T) {
	read := 0
	for _, text := range referenceTexts {
		if _, ok, sure := reference([]byte(text)); !sure {
			t.Errorf("%s: counted otherwise", text)
		} else if ok {
			read++
		}
	}
	if read != 15 {
		t.Errorf("%d commands are read", read)
	}
	if _, _, sure := reference([]byte(`{"command":"CaptureSnapshot","x":1,"x":{"y":2}}`)); sure {
		t.Error("a field named twice is not noticed")
	}
}
