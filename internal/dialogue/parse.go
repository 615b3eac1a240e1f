package dialogue

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// parser reads one value after another from a line.
type parser struct{ rest string }

// parseValue reads the one value that text consists of.
func parseValue(text string) (value, error) {
	p := parser{text}
	v, err := p.value()
	if p.space(); err == nil && p.rest != "" {
		err = fmt.Errorf("%q follows the value", p.rest)
	}
	return v, err
}

func (p *parser) space() { p.rest = strings.TrimLeft(p.rest, " \t\n") }

// take takes a token that stands next.
func (p *parser) take(token string) bool {
	p.space()
	rest, ok := strings.CutPrefix(p.rest, token)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *parser) want(token string) error {
	if !p.take(token) {
		return fmt.Errorf("%q is wanted before %q", token, p.rest)
	}
	return nil
}

// word takes letters, digits, signs and underscores.
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
	case p.take("{"):
		return p.pairs()
	case p.take("["):
		return p.items()
	case p.take("..."):
		return value{is: "..."}, nil
	case p.take("*"):
		return value{is: "*"}, nil
	case p.take("$"):
		return value{is: "var", text: p.word()}, nil
	case strings.HasPrefix(p.rest, `"`):
		text, err := p.quoted()
		return value{is: "str", text: text}, err
	}
	word := p.word()
	switch word {
	case "nil":
		return value{is: "nil"}, nil
	case "false":
		return value{is: "bool"}, nil
	case "true":
		return value{is: "bool", int: 1}, nil
	case "uuid", "time", "bool", "int", "str", "bin", "array", "map":
		return value{is: word, text: anyOf}, nil
	}
	if strings.HasPrefix(p.rest, "'") || strings.HasPrefix(p.rest, "(") {
		return p.made(word)
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		return value{}, fmt.Errorf("%q before %q is no value", word, p.rest)
	}
	return value{is: "int", int: n}, nil
}

func (p *parser) quoted() (string, error) {
	quoted, err := strconv.QuotedPrefix(p.rest)
	if err != nil {
		return "", fmt.Errorf("text begins and does not end: %s", p.rest)
	}
	p.rest = p.rest[len(quoted):]
	return strconv.Unquote(quoted)
}

func (p *parser) pairs() (value, error) {
	v := value{is: "map"}
	for !p.take("}") {
		if p.take("...") {
			v.pairs = append(v.pairs, pair{value: value{is: "..."}})
		} else if key, err := p.key(); err != nil {
			return v, err
		} else if item, err := p.value(); err != nil {
			return v, err
		} else {
			v.pairs = append(v.pairs, pair{key, item})
		}
		if !p.take(",") {
			return v, p.want("}")
		}
	}
	return v, nil
}

func (p *parser) key() (key string, err error) {
	if p.space(); strings.HasPrefix(p.rest, `"`) {
		key, err = p.quoted()
	} else if key = p.word(); key == "" {
		err = fmt.Errorf("a key is wanted before %q", p.rest)
	}
	if err != nil {
		return "", err
	}
	return key, p.want(":")
}

func (p *parser) items() (value, error) {
	v := value{is: "array"}
	for !p.take("]") {
		item, err := p.value()
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
		if !p.take(",") {
			return v, p.want("]")
		}
	}
	return v, nil
}

// made reads a value that is written by how it is made.
func (p *parser) made(how string) (v value, err error) {
	if p.take("'") {
		text, rest, ok := strings.Cut(p.rest, "'")
		is := map[string]string{"h": "bin", "raw": "raw"}[how]
		if !ok || is == "" {
			return v, fmt.Errorf("%s'%s is no value", how, p.rest)
		}
		p.rest = rest
		v = value{is: is}
		v.text, err = unhex(text)
		return v, err
	}
	p.take("(")
	switch how {
	case "now":
		v.is = "now"
		word := p.word()
		if word != "" {
			var d time.Duration
			d, err = time.ParseDuration(word)
			v.int = int64(d)
		}
	case "repeat", "list":
		var item value
		if item, err = p.value(); err == nil {
			err = p.want(",")
		}
		n, _ := strconv.Atoi(p.word())
		v = value{is: "str", text: strings.Repeat(item.text, n)}
		if how == "list" {
			v = value{is: "array", items: make([]value, n)}
			for i := range v.items {
				v.items[i] = item
			}
		}
	case "nest":
		n, _ := strconv.Atoi(p.word())
		v = value{is: "raw", text: strings.Repeat("\x91", n) + "\xc0"}
	case "zeros":
		n, _ := strconv.Atoi(p.word())
		v = value{is: "bin", text: strings.Repeat("\x00", n)}
	default:
		err = fmt.Errorf("%s() makes no value", how)
	}
	if err != nil {
		return v, err
	}
	return v, p.want(")")
}
