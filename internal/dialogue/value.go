package dialogue

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"yardmaster/edge/overhop"
)

// value is a node of what a line says or wants to hear.
type value struct {
	is    string // "nil", "bool", "int", "str", "bin", "array", "map", "raw", "var", "now", "uuid", "time", "*" or "..."
	int   int64  // an int's or a bool's; of now, the offset in nanoseconds
	text  string // a text's or binary's; a variable's name; anyOf
	items []value
	pairs []pair
}

type pair struct {
	key   string
	value value
}

// scene holds what the variables of a conversation stand for.
type scene map[string]overhop.Raw

var inText = regexp.MustCompile(`\$\{\w+\}`)

// fill replaces the variables within a text.
func (s scene) fill(text string) (string, error) {
	var err error
	out := inText.ReplaceAllStringFunc(text, func(name string) string {
		got, ok := s[name[2:len(name)-1]].Str()
		if !ok && err == nil {
			err = fmt.Errorf("%s stands for no text", name)
		}
		return got
	})
	return out, err
}

// encode appends v as MessagePack, keys as they are written.
func (s scene) encode(b []byte, v value) (_ []byte, err error) {
	if v.text == anyOf {
		return b, fmt.Errorf("any %s can be heard, not said", v.is)
	}
	switch v.is {
	case "nil":
		return overhop.AppendNil(b), nil
	case "bool":
		return overhop.AppendBool(b, v.int == 1), nil
	case "int":
		return overhop.AppendInt(b, v.int), nil
	case "str":
		text, err := s.fill(v.text)
		return overhop.AppendStr(b, text), err
	case "bin":
		return overhop.AppendBin(b, []byte(v.text)), nil
	case "raw":
		return append(b, v.text...), nil
	case "now":
		return overhop.AppendTime(b, time.Now().Add(time.Duration(v.int))), nil
	case "var":
		got, ok := s[v.text]
		if !ok {
			return b, fmt.Errorf("$%s stands for nothing yet", v.text)
		}
		return append(b, got...), nil
	case "array":
		b = overhop.AppendArray(b, len(v.items))
		for _, item := range v.items {
			if b, err = s.encode(b, item); err != nil {
				return b, err
			}
		}
		return b, nil
	case "map":
		b = overhop.AppendMap(b, len(v.pairs))
		for _, p := range v.pairs {
			if b, err = s.encode(overhop.AppendStr(b, p.key), p.value); err != nil {
				return b, err
			}
		}
		return b, nil
	}
	return b, fmt.Errorf("%s can be heard, not said", v.is)
}

// match holds what was heard against v and notes new variables. The error says
// where they differ.
func (s scene) match(v value, got overhop.Raw) error {
	if v.text == anyOf {
		return matchKind(v.is, got)
	}
	switch v.is {
	case "*":
		return nil
	case "var":
		want, known := s[v.text]
		if !known {
			s[v.text] = bytes.Clone(got)
			return nil
		}
		if !bytes.Equal(want, got) {
			return fmt.Errorf("is not $%s, which is %s", v.text, show(want))
		}
		return nil
	case "array":
		return s.matchItems(v.items, got)
	case "map":
		return s.matchPairs(v.pairs, got)
	}
	want, err := s.encode(nil, v)
	if err == nil && !bytes.Equal(want, got) {
		err = fmt.Errorf("is not %s", show(want))
	}
	return err
}

// anyOf as the text of a node means any value of its kind.
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

func (s scene) matchPairs(want []pair, got overhop.Raw) error {
	if got.Kind() != overhop.KindMap {
		return fmt.Errorf("is not a map")
	}
	n, open := 0, false
	for _, p := range want {
		if p.value.is == "..." {
			open = true
			continue
		}
		n++
		has := got.Get(p.key)
		if len(has) == 0 {
			return fmt.Errorf(".%s is missing", p.key)
		}
		if err := s.match(p.value, has); err != nil {
			return fmt.Errorf(".%s %w", p.key, err)
		}
	}
	if !open && got.Len() != n {
		return fmt.Errorf("has %d keys, not %d", got.Len(), n)
	}
	return nil
}

func (s scene) matchItems(want []value, got overhop.Raw) error {
	if got.Kind() != overhop.KindArray {
		return fmt.Errorf("is not an array")
	}
	var items []overhop.Raw
	for item := range got.Items() {
		items = append(items, item)
	}
	at := 0
	for i := 0; i < len(want); i++ {
		if want[i].is == "..." {
			if i == len(want)-1 {
				return nil
			}
			i++
			for at < len(items) && s.match(want[i], items[at]) != nil {
				at++
			}
		}
		if at == len(items) {
			return fmt.Errorf("has no item %d", i)
		}
		if err := s.match(want[i], items[at]); err != nil {
			return fmt.Errorf("[%d] %w", at, err)
		}
		at++
	}
	if at < len(items) {
		return fmt.Errorf("has %d items, not %d", len(items), at)
	}
	return nil
}

// show renders what was heard for people, at a length they read.
func show(r overhop.Raw) string {
	text := string(overhop.AppendLossyJSON(nil, r))
	if len(text) > 400 {
		text = text[:400] + "…"
	}
	return text
}

func unhex(text string) (string, error) {
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	return string(b), err
}
