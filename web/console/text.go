package console

import (
	"fmt"
	"html/template"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sizes at which texts are cut, in bytes.
const (
	cutName  = 120
	cutLine  = 400
	cutBlock = 16 << 10
)

// shorten returns text of at most n bytes, and a mark if it was longer.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// shown returns text as HTML in which nothing is hidden: control characters, marks of
// direction and invisible characters are written as their code, in elements of their own.
// Line breaks and tabs stay if lines is set. Longer text than n bytes is cut, with a note of
// how much is missing.
func shown(text string, n int, lines bool) template.HTML {
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
		fmt.Fprintf(&b, `<span class="cut">… %s more</span>`, byteText(int64(cut)))
	}
	return template.HTML(b.String()) //nolint:gosec // escaped above
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

// byteText returns a size for people.
func byteText(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// countText returns a number with thin spaces between its thousands.
func countText(n int64) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && digits[i-1] != '-' {
			b.WriteRune('\u202f')
		}
		b.WriteRune(d)
	}
	return b.String()
}
