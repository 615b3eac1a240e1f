package command

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The longest texts that are shown to people, in characters. What is longer is cut; --json
// shows all of it.
const (
	maxCell = 160  // in a cell of a table
	maxText = 4096 // in a field or a sentence
)

// sanitize returns text as one line of valid UTF-8 that a terminal shows as it is: without
// control characters, which may begin an escape sequence, and without the invisible
// characters that change the direction of text. A run of such characters and of line breaks
// becomes one space.
func sanitize(text string) string {
	if strings.IndexFunc(text, isUnsafe) < 0 && utf8.ValidString(text) {
		return text
	}
	words := strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), isUnsafe)
	for i, word := range words {
		words[i] = strings.TrimSpace(word)
	}
	return strings.Join(words, " ")
}

// OneLine returns text sanitized and cut to 4,096 characters, for output that is not written by Printf.
func OneLine(text string) string { return fit(text, maxText) }

// isUnsafe reports whether sanitize replaces r. The two joiners are kept: scripts and emoji
// need them.
func isUnsafe(r rune) bool {
	const nonJoiner, joiner = '\u200c', '\u200d'
	return unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp) || unicode.Is(unicode.Cf, r) && r != nonJoiner && r != joiner
}

// fit returns text sanitized and cut to a number of characters.
func fit(text string, limit int) string {
	text = sanitize(text)
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit-1]) + "…"
}

// Printf writes to w like [fmt.Fprintf], with every argument that is not a number or a
// bool sanitized and cut to 4,096 characters. Everything that people read is written by
// Printf, [Row] or [Fields], because most of it comes from producers and workers.
func Printf(w io.Writer, format string, args ...any) error {
	_, err := fmt.Fprintf(w, format, safe(args, maxText)...)
	return err
}

// Row writes the cells of a table's line, each sanitized and cut to 160 characters; "-"
// for an empty one.
func Row(w io.Writer, cells ...any) {
	for i, cell := range safe(cells, maxCell) {
		if cell == "" {
			cell = "-"
		}
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, cell)
	}
	fmt.Fprintln(w)
}

// safe returns args with every one that is not a number or a bool as a text that is
// sanitized and cut to limit characters.
func safe(args []any, limit int) []any {
	texts := make([]any, len(args))
	for i, arg := range args {
		texts[i] = arg
		switch _, named := arg.(fmt.Stringer); reflect.ValueOf(arg).Kind() {
		case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
			reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float64:
			if !named {
				continue
			}
		}
		texts[i] = fit(asText(arg), limit)
	}
	return texts
}

// asText returns v as %s formats it: JSON and other bytes as text.
func asText(v any) string {
	if bytes := reflect.ValueOf(v); bytes.IsValid() && bytes.Kind() == reflect.Slice && bytes.Type().Elem().Kind() == reflect.Uint8 {
		return string(bytes.Bytes())
	}
	return fmt.Sprint(v)
}

// Fields returns a function that writes a named value to w on a separate line, sanitized
// and cut to 4,096 characters, unless the value is "", "-" or "null".
func Fields(w io.Writer) func(name, value string) {
	return func(name, value string) {
		length := utf8.RuneCountInString(value)
		if value = fit(value, maxText); value == "" || value == "-" || value == "null" {
			return
		}
		if length > maxText {
			value = fmt.Sprintf("%s (%d characters; --json shows all)", value, length)
		}
		fmt.Fprintf(w, "%s\t%s\n", fit(name, maxCell), value)
	}
}

// Block writes text as lines that begin with indent, for a text of several lines such as a traceback: its
// indentation stays. The characters that [Printf] replaces are escaped: \x1b, \u202e.
func Block(w io.Writer, indent, text string) {
	text = strings.TrimRight(strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\r\n", "\n"), "\n")
	for line := range strings.SplitSeq(text, "\n") {
		var b strings.Builder
		for _, r := range strings.ReplaceAll(line, "\t", "    ") {
			switch {
			case !isUnsafe(r):
				b.WriteRune(r)
			case r < utf8.RuneSelf:
				fmt.Fprintf(&b, `\x%02x`, r)
			default:
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(indent+b.String(), " "))
	}
}
