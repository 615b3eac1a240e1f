package wirescript

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// value is a node of a value that a line sends or matches.
type value struct {
	kind string // "nil", "bool", "int", "str", "bin", "array", "map", "raw", "var", "now", "uuid", "time", "*" or "..."
	int  int64  // of an int or a bool; for now, the offset in nanoseconds
	text string // of a str or bin; the name of a var; or anyOf
	// elements are the items of an array, or the pairs of a map.
	elements []element
}

// element is an item of an array or, with a key, a pair of a map.
type element struct {
	key   string
	value value
}

// variables maps the names of variables to their values.
type variables map[string]overhop.Raw

var inText = regexp.MustCompile(`\$\{\w+\}`)

// expand replaces the variables in a text.
func (vars variables) expand(text string) (string, error) {
	var err error
	out := inText.ReplaceAllStringFunc(text, func(name string) string {
		content, isText := vars[name[2:len(name)-1]].Str()
		if !isText && err == nil {
			err = fmt.Errorf("%s is not a text", name)
		}
		return content
	})
	return out, err
}

// encode appends v as MessagePack, with map keys in written order.
func (vars variables) encode(b []byte, v value) (_ []byte, err error) {
	if v.text == anyOf {
		return b, fmt.Errorf("any %s can be matched, not sent", v.kind)
	}
	switch v.kind {
	case "nil":
		return overhop.AppendNil(b), nil
	case "bool":
		return overhop.AppendBool(b, v.int == 1), nil
	case "int":
		return overhop.AppendInt(b, v.int), nil
	case "str":
		text, err := vars.expand(v.text)
		return overhop.AppendStr(b, text), err
	case "bin":
		return overhop.AppendBin(b, []byte(v.text)), nil
	case "raw":
		return append(b, v.text...), nil
	case "now":
		return overhop.AppendTime(b, time.Now().Add(time.Duration(v.int))), nil
	case "var":
		current, set := vars[v.text]
		if !set {
			return b, fmt.Errorf("$%s has no value yet", v.text)
		}
		return append(b, current...), nil
	case "array", "map":
		appendHeader := overhop.AppendArray
		if v.kind == "map" {
			appendHeader = overhop.AppendMap
		}
		b = appendHeader(b, len(v.elements))
		for _, e := range v.elements {
			if v.kind == "map" {
				b = overhop.AppendStr(b, e.key)
			}
			if b, err = vars.encode(b, e.value); err != nil {
				return b, err
			}
		}
		return b, nil
	}
	return b, fmt.Errorf("%s can be matched, not sent", v.kind)
}

// match compares a received value with v and sets the variables in v that have no
// value yet. The error names the difference.
func (vars variables) match(v value, received overhop.Raw) error {
	if v.text == anyOf {
		return matchKind(v.kind, received)
	}
	switch v.kind {
	case "*":
		return nil
	case "var":
		current, set := vars[v.text]
		if !set {
			vars[v.text] = bytes.Clone(received)
			return nil
		}
		if !bytes.Equal(current, received) {
			return fmt.Errorf("is not $%s, which is %s", v.text, format(current))
		}
		return nil
	case "array":
		return vars.matchItems(v.elements, received)
	case "map":
		return vars.matchPairs(v.elements, received)
	}
	expected, err := vars.encode(nil, v)
	if err == nil && !bytes.Equal(expected, received) {
		err = fmt.Errorf("is not %s", format(expected))
	}
	return err
}

// anyOf is the text of a value that matches any value of its kind.
const anyOf = "\x00any"

// matchKind returns an error unless a received value is of a kind: a kind of
// MessagePack, or a text that is a UUID or a time.
func matchKind(kind string, received overhop.Raw) error {
	text, _ := received.Str()
	matches := false
	switch kind {
	case "uuid":
		id, err := uuid.Parse(text)
		matches = err == nil && id.Version() >= 4 && id.String() == text
	case "time":
		_, err := time.Parse(time.RFC3339Nano, text)
		matches = err == nil
	default:
		matches = isKind(received, kind)
	}
	if !matches {
		return fmt.Errorf("is not a %s", kind)
	}
	return nil
}

// matchPairs compares a received map with the expected pairs, in any order. After "..."
// the map may have more keys.
func (vars variables) matchPairs(expected []element, received overhop.Raw) error {
	if received.Kind() != overhop.KindMap {
		return fmt.Errorf("is not a map")
	}
	keys, mayHaveMore := 0, false
	for _, pair := range expected {
		if pair.value.kind == "..." {
			mayHaveMore = true
			continue
		}
		keys++
		field := received.Get(pair.key)
		if len(field) == 0 {
			return fmt.Errorf(".%s is missing", pair.key)
		}
		if err := vars.match(pair.value, field); err != nil {
			return fmt.Errorf(".%s %w", pair.key, err)
		}
	}
	if !mayHaveMore && received.Len() != keys {
		return fmt.Errorf("has %d keys, not %d", received.Len(), keys)
	}
	return nil
}

// matchItems compares a received array with the expected items, in order. "..." skips
// items up to the first that matches the expected item after it.
func (vars variables) matchItems(expected []element, received overhop.Raw) error {
	if received.Kind() != overhop.KindArray {
		return fmt.Errorf("is not an array")
	}
	items := slices.Collect(received.Items())
	next := 0
	for i := 0; i < len(expected); i++ {
		if expected[i].value.kind == "..." {
			if i == len(expected)-1 {
				return nil
			}
			i++
			for next < len(items) && vars.match(expected[i].value, items[next]) != nil {
				next++
			}
		}
		if next == len(items) {
			return fmt.Errorf("has no item %d", i)
		}
		if err := vars.match(expected[i].value, items[next]); err != nil {
			return fmt.Errorf("[%d] %w", next, err)
		}
		next++
	}
	if next < len(items) {
		return fmt.Errorf("has %d items, not %d", len(items), next)
	}
	return nil
}

// format formats a received value for errors, shortened if it is long.
func format(r overhop.Raw) string {
	text := string(overhop.AppendLossyJSON(nil, r))
	if len(text) > 400 {
		text = text[:400] + "…"
	}
	return text
}

func parseHex(text string) (string, error) {
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	return string(b), err
}

// parser reads the values of a line one after the other.
type parser struct{ rest string }

// parseValue parses text as exactly one value.
func parseValue(text string) (value, error) {
	p := parser{text}
	v, err := p.value()
	if p.space(); err == nil && p.rest != "" {
		err = fmt.Errorf("%q follows the value", p.rest)
	}
	return v, err
}

func (p *parser) space() { p.rest = strings.TrimLeft(p.rest, " \t\n") }

// accept consumes token if it is next, and reports whether it was.
func (p *parser) accept(token string) bool {
	p.space()
	rest, ok := strings.CutPrefix(p.rest, token)
	if ok {
		p.rest = rest
	}
	return ok
}

// expect consumes token, and returns an error if it is not next.
func (p *parser) expect(token string) error {
	if !p.accept(token) {
		return fmt.Errorf("want %q before %q", token, p.rest)
	}
	return nil
}

var wordPattern = regexp.MustCompile(`^[\w+-]*`)

// word consumes letters, digits, signs and underscores.
func (p *parser) word() string {
	p.space()
	word := wordPattern.FindString(p.rest)
	p.rest = p.rest[len(word):]
	return word
}

// value parses one value.
func (p *parser) value() (value, error) {
	p.space()
	switch {
	case p.accept("{"):
		return p.elements("map", "}")
	case p.accept("["):
		return p.elements("array", "]")
	case p.accept("..."):
		return value{kind: "..."}, nil
	case p.accept("*"):
		return value{kind: "*"}, nil
	case p.accept("$"):
		return value{kind: "var", text: p.word()}, nil
	case strings.HasPrefix(p.rest, `"`):
		text, err := p.quoted()
		return value{kind: "str", text: text}, err
	}
	word := p.word()
	switch word {
	case "nil":
		return value{kind: "nil"}, nil
	case "false":
		return value{kind: "bool"}, nil
	case "true":
		return value{kind: "bool", int: 1}, nil
	case "uuid", "time", "bool", "int", "str", "bin", "array", "map":
		return value{kind: word, text: anyOf}, nil
	}
	if strings.HasPrefix(p.rest, "'") || strings.HasPrefix(p.rest, "(") {
		return p.call(word)
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		return value{}, fmt.Errorf("%q before %q is not a value", word, p.rest)
	}
	return value{kind: "int", int: n}, nil
}

// quoted parses a text in quotes, with the escapes of Go.
func (p *parser) quoted() (string, error) {
	quoted, err := strconv.QuotedPrefix(p.rest)
	if err != nil {
		return "", fmt.Errorf("unterminated text: %s", p.rest)
	}
	p.rest = p.rest[len(quoted):]
	return strconv.Unquote(quoted)
}

// elements parses the elements of an array or a map, and the token that closes it.
func (p *parser) elements(kind, closing string) (value, error) {
	v := value{kind: kind}
	for !p.accept(closing) {
		var e element
		var err error
		if p.accept("...") {
			e.value.kind = "..."
		} else if kind == "map" {
			e.key, err = p.key()
		}
		if err == nil && e.value.kind == "" {
			e.value, err = p.value()
		}
		if err != nil {
			return v, err
		}
		v.elements = append(v.elements, e)
		if !p.accept(",") {
			return v, p.expect(closing)
		}
	}
	return v, nil
}

// key parses the key of a pair and the colon after it.
func (p *parser) key() (key string, err error) {
	if p.space(); strings.HasPrefix(p.rest, `"`) {
		key, err = p.quoted()
	} else if key = p.word(); key == "" {
		err = fmt.Errorf("want a key before %q", p.rest)
	}
	if err != nil {
		return "", err
	}
	return key, p.expect(":")
}

// call parses the rest of a value that is written with the constructor name.
func (p *parser) call(name string) (v value, err error) {
	if p.accept("'") {
		digits, rest, closed := strings.Cut(p.rest, "'")
		kind := map[string]string{"h": "bin", "raw": "raw"}[name]
		if !closed || kind == "" {
			return v, fmt.Errorf("%s'%s is not a value", name, p.rest)
		}
		p.rest = rest
		v = value{kind: kind}
		v.text, err = parseHex(digits)
		return v, err
	}
	p.accept("(")
	switch name {
	case "now":
		v.kind = "now"
		word := p.word()
		if word != "" {
			var d time.Duration
			d, err = time.ParseDuration(word)
			v.int = int64(d)
		}
	case "repeat", "list":
		var item value
		if item, err = p.value(); err == nil {
			err = p.expect(",")
		}
		n, _ := strconv.Atoi(p.word())
		v = value{kind: "str", text: strings.Repeat(item.text, n)}
		if name == "list" {
			v = value{kind: "array", elements: slices.Repeat([]element{{value: item}}, n)}
		}
	case "nest":
		n, _ := strconv.Atoi(p.word())
		v = value{kind: "raw", text: strings.Repeat("\x91", n) + "\xc0"}
	case "zeros":
		n, _ := strconv.Atoi(p.word())
		v = value{kind: "bin", text: strings.Repeat("\x00", n)}
	default:
		err = fmt.Errorf("unknown constructor %s()", name)
	}
	if err != nil {
		return v, err
	}
	return v, p.expect(")")
}
