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

	"yardmaster/internal/frame"
)

// page is docs/rrq.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/rrq.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// written is a message as this package writes it.
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

// canonical is JSON in one form, for comparing.
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

// The page's messages are exactly what this package writes, and its tables name
// each of their keys.
func TestPageShowsMessages(t *testing.T) {
	text := page(t)
	objects := make(map[string]any) // by the word of the tables' headings
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

// The page's bytes are a frame that can be read.
func TestPageShowsBytes(t *testing.T) {
	block := regexp.MustCompile("(?s)```hex\n(.*?)```").FindStringSubmatch(page(t))
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

// The page's limits of the wire are those of this package.
func TestPageNamesWireLimits(t *testing.T) {
	for _, row := range []string{
		fmt.Sprintf("| payload of a frame | %d bytes |", MaxFrame),
		fmt.Sprintf("| requests of one process at once | %d |", MaxInFlight),
	} {
		if !strings.Contains(page(t), "\n"+row+"\n") {
			t.Errorf("the page lacks %s", row)
		}
	}
}
