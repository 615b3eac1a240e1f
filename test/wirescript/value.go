package wirescript

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// value is a node of a value that a line sends or matches.
type value struct {
	kind  string // "nil", "bool", "int", "str", "bin", "array", "map", "raw", "var", "now", "uuid", "time", "*" or "..."
	int   int64  // of an int or a bool; for now, the offset in nanoseconds
	text  string // of a str or bin; the name of a var; or anyOf
	items []value
	pairs []pair
}

type pair struct {
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
		got, ok := vars[name[2:len(name)-1]].Str()
		if !ok && err == nil {
			err = fmt.Errorf("%s is not a text", name)
		}
		return got
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
		got, ok := vars[v.text]
		if !ok {
			return b, fmt.Errorf("$%s has no value yet", v.text)
		}
		return append(b, got...), nil
	case "array":
		b = overhop.AppendArray(b, len(v.items))
		for _, item := range v.items {
			if b, err = vars.encode(b, item); err != nil {
				return b, err
			}
		}
		return b, nil
	case "map":
		b = overhop.AppendMap(b, len(v.pairs))
		for _, p := range v.pairs {
			if b, err = vars.encode(overhop.AppendStr(b, p.key), p.value); err != nil {
				return b, err
			}
		}
		return b, nil
	}
	return b, fmt.Errorf("%s can be matched, not sent", v.kind)
}

// match compares a received value with v and sets the variables in v that have no
// value yet. The error names the difference.
func (vars variables) match(v value, got overhop.Raw) error {
	if v.text == anyOf {
		return matchKind(v.kind, got)
	}
	switch v.kind {
	case "*":
		return nil
	case "var":
		want, known := vars[v.text]
		if !known {
			vars[v.text] = bytes.Clone(got)
			return nil
		}
		if !bytes.Equal(want, got) {
			return fmt.Errorf("is not $%s, which is %s", v.text, format(want))
		}
		return nil
	case "array":
		return vars.matchItems(v.items, got)
	case "map":
		return vars.matchPairs(v.pairs, got)
	}
	want, err := vars.encode(nil, v)
	if err == nil && !bytes.Equal(want, got) {
		err = fmt.Errorf("is not %s", format(want))
	}
	return err
}

// anyOf is the text of a value that matches any value of its kind.
const anyOf = "\x00any"

func matchKind(kind string, got overhop.Raw) error {
	ok := false
	switch kind {
	case "uuid":
		text, _ := got.Str()
		id, err := uuid.Parse(text)
		ok = err == nil && id.Version() >= 4 && id.String() == text
	case "time":
		text, _ := got.Str()
		_, err := time.Parse(time.RFC3339Nano, text)
		ok = err == nil
	default:
		ok = map[string]overhop.Kind{
			"bool": overhop.KindBool, "int": overhop.KindInt, "str": overhop.KindStr, "bin": overhop.KindBin,
			"array": overhop.KindArray, "map": overhop.KindMap,
		}[kind] == got.Kind()
	}
	if !ok {
		return fmt.Errorf("is not a %s", kind)
	}
	return nil
}

func (vars variables) matchPairs(want []pair, got overhop.Raw) error {
	if got.Kind() != overhop.KindMap {
		return fmt.Errorf("is not a map")
	}
	n, open := 0, false
	for _, p := range want {
		if p.value.kind == "..." {
			open = true
			continue
		}
		n++
		has := got.Get(p.key)
		if len(has) == 0 {
			return fmt.Errorf(".%s is missing", p.key)
		}
		if err := vars.match(p.value, has); err != nil {
			return fmt.Errorf(".%s %w", p.key, err)
		}
	}
	if !open && got.Len() != n {
		return fmt.Errorf("has %d keys, not %d", got.Len(), n)
	}
	return nil
}

func (vars variables) matchItems(want []value, got overhop.Raw) error {
	if got.Kind() != overhop.KindArray {
		return fmt.Errorf("is not an array")
	}
	var items []overhop.Raw
	for item := range got.Items() {
		items = append(items, item)
	}
	next := 0
	for i := 0; i < len(want); i++ {
		if want[i].kind == "..." {
			if i == len(want)-1 {
				return nil
			}
			i++
			for next < len(items) && vars.match(want[i], items[next]) != nil {
				next++
			}
		}
		if next == len(items) {
			return fmt.Errorf("has no item %d", i)
		}
		if err := vars.match(want[i], items[next]); err != nil {
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
