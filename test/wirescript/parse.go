package wirescript

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

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

func (p *parser) expect(token string) error {
	if !p.accept(token) {
		return fmt.Errorf("want %q before %q", token, p.rest)
	}
	return nil
}

// word consumes letters, digits, signs and underscores.
func (p *parser) word() string {
	p.space()
	n := 0
	for n < len(p.rest) && (p.rest[n] == '_' || p.rest[n] == '-' || p.rest[n] == '+' ||
		'0' <= p.rest[n] && p.rest[n] <= '9' || 'a' <= p.rest[n]|0x20 && p.rest[n]|0x20 <= 'z') {
		n++
	}
	word := p.rest[:n]
	p.rest = p.rest[n:]
	return word
}

func (p *parser) value() (value, error) {
	p.space()
	switch {
	case p.accept("{"):
		return p.pairs()
	case p.accept("["):
		return p.items()
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

func (p *parser) quoted() (string, error) {
	quoted, err := strconv.QuotedPrefix(p.rest)
	if err != nil {
		return "", fmt.Errorf("unterminated text: %s", p.rest)
	}
	p.rest = p.rest[len(quoted):]
	return strconv.Unquote(quoted)
}

func (p *parser) pairs() (value, error) {
	v := value{kind: "map"}
	for !p.accept("}") {
		if p.accept("...") {
			v.pairs = append(v.pairs, pair{value: value{kind: "..."}})
		} else if key, err := p.key(); err != nil {
			return v, err
		} else if item, err := p.value(); err != nil {
			return v, err
		} else {
			v.pairs = append(v.pairs, pair{key, item})
		}
		if !p.accept(",") {
			return v, p.expect("}")
		}
	}
	return v, nil
}

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

func (p *parser) items() (value, error) {
	v := value{kind: "array"}
	for !p.accept("]") {
		item, err := p.value()
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
		if !p.accept(",") {
			return v, p.expect("]")
		}
	}
	return v, nil
}

// call parses the rest of a value that is written with the constructor name.
func (p *parser) call(name string) (v value, err error) {
	if p.accept("'") {
		text, rest, ok := strings.Cut(p.rest, "'")
		kind := map[string]string{"h": "bin", "raw": "raw"}[name]
		if !ok || kind == "" {
			return v, fmt.Errorf("%s'%s is not a value", name, p.rest)
		}
		p.rest = rest
		v = value{kind: kind}
		v.text, err = parseHex(text)
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
			v = value{kind: "array", items: make([]value, n)}
			for i := range v.items {
				v.items[i] = item
			}
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
