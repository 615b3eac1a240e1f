package rrq

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// docText returns docs/reference/rrq.md.
func docText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/rrq.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// written returns a message as this package encodes it.
func written(t *testing.T, payload []byte) []byte {
	t.Helper()
	m, err := decode(payload)
	if err != nil {
		t.Fatalf("%v: %s", err, payload)
	}
	var b []byte
	switch {
	case m.request != nil:
		b, err = appendRequest(nil, m.request)
	case m.outcome != nil:
		b, err = appendOutcome(nil, m.outcome)
	default:
		b, err = appendCancel(nil, m.cancel)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b[4:]
}

// canonical returns JSON in one form, for comparisons.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The messages on the page are those that this package encodes, and its tables
// list all their keys.
func TestDoc_Messages(t *testing.T) {
	text := docText(t)
	objects := make(map[string]any) // by the word in the headings of the tables
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(text, -1) {
		example := []byte(block[1])
		if got, want := canonical(t, written(t, example)), canonical(t, example); got != want {
			t.Errorf("the page shows\n%s\nit is\n%s", want, got)
		}
		var m struct {
			Type    string
			Payload map[string]any
		}
		if err := json.Unmarshal(example, &m); err != nil {
			t.Fatal(err)
		}
		objects[map[string]string{typeRequest: "request", typeResponse: "outcome", typeCancel: "cancel"}[m.Type]] = m.Payload
		for in, word := range map[string]string{"context": "context", "error": "error"} {
			if inner, ok := m.Payload[in]; ok {
				objects[word] = inner
			}
		}
	}
	for _, word := range []string{"request", "context", "outcome", "error", "cancel"} {
		object, ok := objects[word].(map[string]any)
		_, table, found := strings.Cut(text, "\n| key of a "+word+" |")
		if !found {
			_, table, found = strings.Cut(text, "\n| key of an "+word+" |")
		}
		if !ok || !found {
			t.Fatalf("the page has no example or no table of a %s", word)
		}
		table, _, _ = strings.Cut(table, "\n\n")
		var listed []string
		for row := range strings.Lines(table) {
			cells := strings.Split(row, "|")
			for _, key := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				listed = append(listed, key[1])
			}
		}
		slices.Sort(listed)
		if want := slices.Sorted(maps.Keys(object)); !slices.Equal(listed, want) {
			t.Errorf("the table of a %s has %q, its example %q", word, listed, want)
		}
	}
}

// The bytes on the page are a valid frame.
func TestDoc_Bytes(t *testing.T) {
	block := regexp.MustCompile("(?s)```hex\n(.*?)```").FindStringSubmatch(docText(t))
	if block == nil {
		t.Fatal("the page shows no bytes")
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(block[1]), ""))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := frame.NewReader(bytes.NewReader(b), MaxFrame).Next()
	if err != nil {
		t.Fatal(err)
	}
	m, err := decode(payload)
	if err != nil || m.cancel == nil || m.cancel.JobID != "j" || m.version != Version {
		t.Errorf("the bytes are %s: %+v, %v", payload, m.cancel, err)
	}
}

// The page lists the limits of this package.
func TestDoc_WireLimits(t *testing.T) {
	for _, row := range []string{
		fmt.Sprintf("| payload of a frame | %d bytes |", MaxFrame),
		fmt.Sprintf("| requests of one process at once | %d |", MaxInFlight),
	} {
		if !strings.Contains(docText(t), "\n"+row+"\n") {
			t.Errorf("the page lacks %s", row)
		}
	}
}
