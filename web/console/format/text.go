// Package format writes values as HTML for people.
//
// Text from users is data: it is escaped, and control characters and direction marks are made
// visible.
package format

import (
	"fmt"
	"html/template"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sizes at which texts are cut, in bytes.
const (
	CutName  = 120
	CutLine  = 400
	CutBlock = 16 << 10
)

// Shorten returns text of at most n bytes, and a mark if it was longer.
func Shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// Plain returns text in which nothing is hidden, as [Text] does, but not as HTML: for titles of
// pages and of parts of charts. Longer text than n bytes is cut.
func Plain(text string, n int) string {
	var b strings.Builder
	for _, r := range Shorten(strings.ToValidUTF8(text, "\ufffd"), n) {
		if hidden(r) {
			fmt.Fprintf(&b, `\u{%x}`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Escape is like [Plain] for a text in a field of a form, from which [Unescape] returns it.
func Escape(text string) string {
	return Plain(strings.ReplaceAll(text, `\u{`, `\u{5c}u{`), math.MaxInt)
}

// escaped matches a character as [Plain] writes those that are hidden.
var escaped = regexp.MustCompile(`\\u\{[0-9a-f]{1,8}\}`)

// Unescape returns the text that [Escape] has written.
func Unescape(text string) string {
	return escaped.ReplaceAllStringFunc(text, func(code string) string {
		r, err := strconv.ParseInt(code[len(`\u{`):len(code)-1], 16, 32)
		if err != nil || !utf8.ValidRune(rune(r)) {
			return code
		}
		return string(rune(r))
	})
}

// Text returns text as HTML in which nothing is hidden: control characters, marks of
// direction and invisible characters are written as their code, in elements of their own.
// Line breaks and tabs stay if lines is set. Longer text than n bytes is cut, with a note of
// how much is missing.
func Text(text string, n int, lines bool) template.HTML {
	var b strings.Builder
	cut := 0
	if len(text) > n {
		end := n
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		cut, text = len(text)-end, text[:end]
	}
	for i, width := 0, 0; i < len(text); i += width {
		r, size := utf8.DecodeRuneInString(text[i:])
		width = size
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `<span class="code-point">\x%02x</span>`, text[i])
		case lines && (r == '\n' || r == '\t'):
			b.WriteRune(r)
		case hidden(r):
			fmt.Fprintf(&b, `<span class="code-point">\u{%x}</span>`, r)
		default:
			template.HTMLEscape(&b, []byte(text[i:i+size]))
		}
	}
	if cut > 0 {
		fmt.Fprintf(&b, `<span class="cut">… %s more</span>`, Bytes(int64(cut)))
	}
	return template.HTML(b.String()) //nolint:gosec // escaped above
}

// breaks matches line breaks with the spaces around them.
var breaks = regexp.MustCompile(`\s*[\r\n]\s*`)

// Line returns text as [Text] does, in one line: a space stands for line breaks.
func Line(text string) template.HTML {
	return Text(breaks.ReplaceAllString(text, " "), CutLine, false)
}

// hidden reports whether a character is not visible, or changes how others are shown.
func hidden(r rune) bool {
	switch {
	case r == ' ':
		return false
	case unicode.IsControl(r), unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs):
		return true
	case r >= 0xfe00 && r <= 0xfe0f, r == 0x115f, r == 0x1160, r == 0x3164, r == 0xffa0:
		return true
	}
	return unicode.IsSpace(r)
}
