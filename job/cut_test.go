package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// traceback returns a text of n lines, the last of which names what failed.
func traceback(n int) string {
	var b strings.Builder
	b.WriteString("Traceback (most recent call last):\n")
	for i := range n {
		fmt.Fprintf(&b, "  File \"/srv/app/step%d.py\", line %d, in step — ä\u202e\n    call_%d()\n", i, i+1, i)
	}
	return b.String() + "ValueError: the last line"
}

// omitted returns the number in the only line of a text that stands for what was cut.
func omitted(t *testing.T, text string) int {
	t.Helper()
	found := regexp.MustCompile(`(?m)^\.\.\. ([0-9]+) bytes omitted \.\.\.$`).FindAllStringSubmatch(text, -1)
	if len(found) != 1 {
		t.Fatalf("%d marks in %q", len(found), text)
	}
	n, _ := strconv.Atoi(found[0][1])
	return n
}

// Details remain what they are and lose the middle of their longest text: the line that failed, at the
// end, stays.
func TestCutDetails_KeepsTheEnd(t *testing.T) {
	text := traceback(400)
	details, err := json.Marshal(map[string]any{"traceback": text, "attempt": 3, "nested": map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{512, 4 << 10, 16 << 10} {
		cut := CutDetails(details, n)
		var got struct {
			Traceback string
			Attempt   int
			Nested    map[string]string
		}
		if err := json.Unmarshal(cut, &got); err != nil || len(cut) > n || got.Attempt != 3 || got.Nested["a"] != "b" {
			t.Fatalf("%d bytes: %s, %v", n, cut, err)
		}
		if !strings.HasPrefix(got.Traceback, "Traceback") || !strings.HasSuffix(got.Traceback, "\nValueError: the last line") || len(cut) < n*3/4 {
			t.Errorf("%d bytes: %q", n, got.Traceback)
		}
		mark := fmt.Sprintf("\n... %d bytes omitted ...\n", omitted(t, got.Traceback))
		if kept := len(got.Traceback) - len(mark); kept+omitted(t, got.Traceback) != len(text) {
			t.Errorf("%d bytes: %d of %d bytes are kept, %q", n, kept, len(text), mark)
		}
	}
	if end := len(CutDetails(details, DefaultErrorBytes)) * (100 - detailsHead) / 100; end < 8<<10 {
		t.Errorf("%d bytes of the end are kept", end)
	}
}

// Details that are cut again have the number of all bytes that the original has lost.
func TestCutDetails_Again(t *testing.T) {
	text := traceback(400)
	details, _ := json.Marshal(map[string]string{"stack": text})
	var got struct{ Stack string }
	if err := json.Unmarshal(CutDetails(CutDetails(CutDetails(details, 16<<10), 4000), 512), &got); err != nil {
		t.Fatal(err)
	}
	missing := omitted(t, got.Stack)
	mark := fmt.Sprintf("\n... %d bytes omitted ...\n", missing)
	if got := len(got.Stack) - len(mark) + missing; got < len(text)-2 || got > len(text)+2 { // line breaks beside a mark may be lost
		t.Errorf("%d bytes are kept and missing, the text has %d", got, len(text))
	}
}

func FuzzCutDetails(f *testing.F) {
	for _, seed := range []string{`"a"`, `{"a":"` + strings.Repeat(`\u0001é`, 400) + `"}`, `[` + strings.Repeat(`"x",`, 500) + `1]`, strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200),
		`{"... 5 bytes omitted ...":"` + strings.Repeat(`\n... 999999999999 bytes omitted ...\n`, 100) + `"}`, `{"` + strings.Repeat("k", 3000) + `":1}`, "\xff" + strings.Repeat("\xfe", 900)} {
		f.Add([]byte(seed), 512)
	}
	f.Fuzz(func(t *testing.T, details []byte, n int) {
		n = max(128, min(n, 1<<16))
		cut := CutDetails(details, n)
		if len(cut) > n {
			t.Fatalf("%d of %d bytes: %s", len(cut), n, cut)
		}
		if len(bytes.TrimSpace(details)) > n && !json.Valid(cut) {
			t.Fatalf("not JSON: %s", cut)
		}
		if text := Excerpt(string(details), n, 75); len(text) > n || !utf8.ValidString(text) {
			t.Fatalf("%d of %d bytes: %q", len(text), n, text)
		}
	})
}
