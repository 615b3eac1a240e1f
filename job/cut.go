package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// CutText returns text of at most n bytes: a longer text ends between two characters, with
// a mark.
func CutText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const mark = " (cut)"
	end := max(0, n-len(mark))
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// CutJSON returns a JSON value of at most n bytes, which must be at least 64, in the form that ledgers
// below level 8 keep: a longer value becomes an object that has its size in bytes and its beginning as
// text. Such an object can be cut again, and keeps the original's size.
func CutJSON(value json.RawMessage, n int) json.RawMessage {
	if len(value) <= n {
		return value
	}
	const begin, end = `{"cut":true,"bytes":`, `"}`
	size, start := len(value), string(value)
	var earlier struct {
		Bytes int
		Start string
	}
	if strings.HasPrefix(start, begin) && json.Unmarshal(value, &earlier) == nil {
		size, start = earlier.Bytes, earlier.Start
	}
	b := fmt.Appendf(make([]byte, 0, n), begin+`%d,"start":"`, size)
	for _, r := range start {
		var char [utf8.UTFMax]byte
		escaped := utf8.AppendRune(char[:0], r)
		switch {
		case r == '"' || r == '\\':
			escaped = append(char[:0], '\\', byte(r))
		case r < ' ': // white space between values
			escaped = append(char[:0], ' ')
		}
		if len(b)+len(escaped)+len(end) > n {
			break
		}
		b = append(b, escaped...)
	}
	return append(b, end...)
}

// Excerpt returns text in at most n bytes, which must be at least 64. The middle of a longer text is
// replaced by a line with its number of bytes, such as "... 12345 bytes omitted ...". head is the part
// of the result, in percent, that is the beginning of text. Excerpt cuts between lines where it can. An
// excerpt can be cut again: then the line has the number of all bytes that the original has lost.
func Excerpt(text string, n, head int) string {
	return excerpt(text, n, head, func(r rune) int { return utf8.RuneLen(r) })
}

// omission matches the line that replaces the middle of a text.
var omission = regexp.MustCompile(`\n?\.\.\. ([0-9]{1,12}) bytes omitted \.\.\.\n?`)

const maxOmission = len("\\n... 123456789012 bytes omitted ...\\n") // as JSON

// excerpt is Excerpt for n and sizes of characters that are counted by size.
func excerpt(text string, n, head int, size func(rune) int) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	total := 0
	for _, r := range text {
		if total += size(r); total > n {
			break
		}
	}
	if total <= n {
		return text
	}
	room := max(0, n-maxOmission)
	start, used := 0, 0
	for start < len(text) {
		r, width := utf8.DecodeRuneInString(text[start:])
		if used+size(r) > room*head/100 {
			break
		}
		start, used = start+width, used+size(r)
	}
	end := len(text)
	for end > start {
		r, width := utf8.DecodeLastRuneInString(text[:end])
		if used+size(r) > room {
			break
		}
		end, used = end-width, used+size(r)
	}
	if i := strings.LastIndexByte(text[:start], '\n'); i > start/2 {
		start = i
	}
	if i := strings.IndexByte(text[end:], '\n'); i >= 0 && i < (len(text)-end)/2 && text[end-1] != '\n' {
		end += i + 1
	}
	omitted := 0
	for _, at := range omission.FindAllStringSubmatchIndex(text, -1) {
		if at[0] < end && at[1] > start {
			earlier, _ := strconv.Atoi(text[at[2]:at[3]])
			start, end, omitted = min(start, at[0]), max(end, at[1]), omitted+earlier-(at[1]-at[0])
		}
	}
	return fmt.Sprintf("%s\n... %d bytes omitted ...\n%s", text[:start], min(omitted+end-start, 999_999_999_999), text[end:])
}

// detailsHead is the part of cut details, in percent, that is their beginning. The rest is their end,
// because a traceback of Python ends with the error and the line that failed.
const detailsHead = 25

// Limits of details that remain an object when they are cut.
const (
	maxCutMembers = 32 // of an object
	maxCutDepth   = 4
	minCutMember  = 128 // bytes of a member that is cut
)

// CutDetails returns a JSON value of at most n bytes, which must be at least 128. A longer value keeps
// its form where possible: texts lose their middle, see [Excerpt], the longest members of an object
// first. Any other value becomes an object with its size in bytes, and an excerpt of its JSON, such as
// {"cut":true,"bytes":70000,"text":"[1,2,\n... 69000 bytes omitted ...\n"}.
func CutDetails(value json.RawMessage, n int) json.RawMessage {
	if len(value) <= n {
		return value
	}
	return shorten(value, n, 0)
}

// shorten returns value, which has more than n bytes, in n bytes. depth is how many objects it is in.
func shorten(value json.RawMessage, n, depth int) json.RawMessage {
	switch value = bytes.TrimSpace(value); {
	case len(value) <= n:
		return value
	case value[0] == '"':
		var text string
		if json.Unmarshal(value, &text) == nil {
			return quote(excerpt(text, n-2, detailsHead, jsonSize))
		}
	case value[0] == '{' && depth < maxCutDepth:
		if cut := cutObject(value, n, depth); cut != nil {
			return cut
		}
	}
	begin := fmt.Appendf(nil, `{"cut":true,"bytes":%d,"text":`, len(value))
	text := excerpt(string(value), n-len(begin)-3, detailsHead, jsonSize)
	return append(append(begin, quote(text)...), '}')
}

// cutObject returns an object in n bytes, or nil if that is not possible with all its members.
func cutObject(object json.RawMessage, n, depth int) json.RawMessage {
	names, values := membersOf(object, maxCutMembers)
	order, left := make([]int, len(names)), n-2
	for i := range names {
		order[i] = i
		left -= len(names[i]) + 2
	}
	slices.SortStableFunc(order, func(a, b int) int { return len(values[a]) - len(values[b]) })
	for done, i := range order {
		share := left / (len(order) - done)
		if len(values[i]) > share {
			if share < minCutMember {
				return nil
			}
			values[i] = shorten(values[i], share, depth+1)
		}
		left -= len(values[i])
	}
	if len(names) == 0 {
		return nil
	}
	b := make([]byte, 0, n)
	for i, name := range names {
		b = append(append(append(append(b, "{,"[min(i, 1)]), name...), ':'), values[i]...)
	}
	return append(b, '}')
}

// membersOf returns the names, as JSON, and the values of an object's members, in their order. It
// returns none if the object has more than limit members, or is not valid.
func membersOf(object json.RawMessage, limit int) (names, values []json.RawMessage) {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return nil, nil
	}
	for dec.More() {
		name, err := dec.Token()
		text, _ := name.(string)
		var value json.RawMessage
		if err != nil || len(names) == limit || dec.Decode(&value) != nil {
			return nil, nil
		}
		names, values = append(names, quote(text)), append(values, value)
	}
	return names, values
}

// quote returns text as a JSON string, in the number of bytes that jsonSize returns.
func quote(text string) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string can always be encoded
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// jsonSize returns the number of bytes of a character in a JSON string.
func jsonSize(r rune) int {
	switch {
	case strings.ContainsRune("\"\\\n\r\t\b\f", r):
		return 2
	case r < ' ', r == '\u2028', r == '\u2029':
		return 6
	}
	return utf8.RuneLen(r)
}
