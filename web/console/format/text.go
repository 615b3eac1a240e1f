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
	text = Shorten(strings.ToValidUTF8(text, "\ufffd"), n)
	for i, r := range text {
		if hidden(r) && !shapesEmoji(text, i) {
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
	return write(text, n, lines, "")
}

// separators are the characters after which a name may be broken into lines.
const separators = "/._-:@#,=+|"

// Name returns the beginning of a name as [Text] does, with places after separators at which lines may break.
func Name(name string) template.HTML { return write(name, CutName, false, separators) }

// write returns text as [Text] does, with a place at which a line may break after each character of breaks
// that another follows.
func write(text string, n int, lines bool, breaks string) template.HTML {
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
		case hidden(r) && !shapesEmoji(text, i):
			fmt.Fprintf(&b, `<span class="code-point">\u{%x}</span>`, r)
		default:
			template.HTMLEscape(&b, []byte(text[i:i+size]))
			if i+size < len(text) && strings.ContainsRune(breaks, r) && !strings.ContainsRune(breaks, rune(text[i+size])) {
				b.WriteString("<wbr>")
			}
		}
	}
	if cut > 0 {
		fmt.Fprintf(&b, `<span class="cut">… %s more</span>`, Bytes(int64(cut)))
	}
	html := b.String()
	if strings.ContainsFunc(text, isRightToLeft) {
		html = "<bdi>" + html + "</bdi>"
	}
	return template.HTML(html) //nolint:gosec // escaped above
}

// isRightToLeft reports whether r is of a script that is written from right to left. A text that has such
// characters would change the order of what is beside it.
func isRightToLeft(r rune) bool {
	return unicode.In(r, unicode.Arabic, unicode.Hebrew, unicode.Syriac, unicode.Thaana, unicode.Nko)
}

// breaks matches line breaks with the spaces around them.
var breaks = regexp.MustCompile(`\s*[\r\n]\s*`)

// Line returns text as [Text] does, in one line: a space stands for line breaks.
func Line(text string) template.HTML {
	return Text(breaks.ReplaceAllString(text, " "), CutLine, false)
}

// Invisible characters that are part of emoji.
const (
	joiner = '\u200d' // joins two pictographs to one
	colour = '\ufe0f' // asks for the colourful form of the character before
	keycap = '\u20e3'
)

// shapesEmoji reports whether the character at i, which is hidden elsewhere, is part of an emoji: it joins two
// pictographs, or asks for the colourful form of one.
func shapesEmoji(text string, i int) bool {
	r, size := utf8.DecodeRuneInString(text[i:])
	before, width := utf8.DecodeLastRuneInString(text[:i])
	after, _ := utf8.DecodeRuneInString(text[i+size:])
	switch r {
	case colour:
		return isPictograph(before) || after == keycap
	case joiner:
		if before == colour {
			before, _ = utf8.DecodeLastRuneInString(text[:i-width])
		}
		return isPictograph(before) && isPictograph(after)
	}
	return false
}

// isPictograph reports whether r may be part of a sequence of pictographs, with modifiers of the tone of skin.
func isPictograph(r rune) bool {
	return r >= 0x1f000 && r <= 0x1faff || r >= 0x2190 && r <= 0x2bff && unicode.IsSymbol(r)
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
