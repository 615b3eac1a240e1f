package job

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
)

// Labels are the texts by which a job is found, and which its dispatches do not need: the fields of
// a [Document] of the same names.
type Labels struct {
	Key    string
	Tags   []string
	Meta   []Label // in the order of their names
	Params []Label
}

// Labels returns the labels that the specification has, without the producer's key and params.
func (s *Spec) Labels() Labels {
	l := Labels{Tags: s.Tags}
	for _, name := range slices.Sorted(maps.Keys(s.Meta)) {
		l.Meta = append(l.Meta, Label{name, s.Meta[name]})
	}
	return l
}

// Encode returns the labels as a text of bytes that [ParseLabels] parses, "" if there are none.
func (l *Labels) Encode() string {
	if l.Key == "" && len(l.Tags)+len(l.Meta)+len(l.Params) == 0 {
		return ""
	}
	b := appendLabel(nil, l.Key)
	b = binary.AppendUvarint(b, uint64(len(l.Tags)))
	for _, tag := range l.Tags {
		b = appendLabel(b, tag)
	}
	for _, labels := range [][]Label{l.Meta, l.Params} {
		b = binary.AppendUvarint(b, uint64(len(labels)))
		for _, label := range labels {
			b = appendLabel(appendLabel(b, label.Name), label.Value)
		}
	}
	return string(b)
}

func appendLabel(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// NoLabels is a text of [Labels.Encode] for a job that has no labels any more.
const NoLabels = "\x00\x00\x00\x00"

// OnlyKey returns the key of a text of [Labels.Encode], and reports whether it has a key of less than 128
// bytes and no other labels.
func OnlyKey(text string) (key string, ok bool) {
	const none = "\x00\x00\x00" // tags, meta, params
	if len(text) <= 1+len(none) || int(text[0]) != len(text)-1-len(none) || text[0] >= 0x80 || text[len(text)-len(none):] != none {
		return "", false
	}
	return text[1 : len(text)-len(none)], true
}

// ErrBadLabels is returned for a text that [Labels.Encode] has not returned.
var ErrBadLabels = errors.New("malformed labels")

// ParseLabels parses what [Labels.Encode] returned. The error is [ErrBadLabels].
func ParseLabels(text string) (l Labels, err error) {
	if text == "" {
		return Labels{}, nil
	}
	number := func() (n uint64) {
		for shift := 0; len(text) > 0 && shift < 35; shift += 7 {
			c := text[0]
			text = text[1:]
			if n |= uint64(c&0x7f) << shift; c < 0x80 {
				if n > uint64(len(text)) { // each of what follows has a byte or more
					break
				}
				return n
			}
		}
		text, err = "", ErrBadLabels
		return 0
	}
	label := func() (s string) {
		n := number()
		s, text = text[:n], text[n:]
		return s
	}
	l.Key = label()
	for range number() {
		l.Tags = append(l.Tags, label())
	}
	for _, labels := range []*[]Label{&l.Meta, &l.Params} {
		for range number() {
			*labels = append(*labels, Label{label(), label()})
		}
	}
	if err != nil || text != "" {
		return Labels{}, ErrBadLabels
	}
	return l, nil
}

// ProducerKey returns the key with which a producer enqueued the job of a record, "" if it gave none,
// or one that is not shown: a UUID, or one that a client has generated.
func (r *Record) ProducerKey(id ID) string {
	if r.Key == "" {
		return ""
	}
	if _, isID := parseID(r.Key); !isID && !isGenerated(r.Key) {
		return r.Key
	}
	return KeyOf(r.Body, r.Queue, id)
}
