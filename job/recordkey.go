package job

import (
	"bytes"
	"encoding/json"
	"strings"
)

// recordKey is the name of the producer's key in the body of a record. Producers give their key
// apart from the job; what they write under this name is a short form of limit_key, see
// [ParseRecord].
const recordKey = "key"

// WithKey returns the body of a record with the producer's key added to it, so that the key
// can be shown wherever the record is: in its lane, relocated, or in a dead letter. The ledger
// does not keep keys, which would add up to half of what a job takes there. A key that is a UUID
// is the job's id and is not added, nor is one that a client has generated. What the producer
// wrote under the same name is repeated as limit_key. The body must be valid JSON; unless it is an
// object with fields, WithKey returns it as it is.
func WithKey(body []byte, key string) []byte {
	const space = " \t\r\n"
	fields, isObject := bytes.CutSuffix(bytes.TrimRight(body, space), []byte("}"))
	fields = bytes.TrimRight(fields, space)
	if _, isID := parseID(key); key == "" || isID || isGenerated(key) || !isObject || len(fields) == 0 || fields[len(fields)-1] == '{' {
		return body
	}
	text, err := json.Marshal(key)
	if err != nil {
		return body
	}
	with := make([]byte, 0, len(fields)+len(recordKey)+len(text)+5)
	with = append(with, fields...)
	if bytes.Contains(body, []byte(`"`+recordKey+`"`)) {
		if s, err := parseWithKey(body); err == nil && s.Key != nil && s.LimitKey == nil && *s.Key != key {
			with = AppendText(append(with, `,"limit_key":`...), *s.Key)
		}
	}
	with = append(with, `,"`+recordKey+`":`...)
	with = append(with, text...)
	return append(with, '}')
}

// ParseRecord is [ParseSpec] for the body of the record of a job. The text under "key" is the
// job's limit key, unless it is the producer's key, which [WithKey] added. The producer's key of
// a record that [WithKey] has not seen is recordKey.
func ParseRecord(body []byte, queue, producerKey string, id ID) (Spec, error) {
	s, err := parseRecord(body, queue, producerKey, id)
	s.Params = bytes.Clone(s.Params)
	return s, err
}

// parseRecord is ParseRecord for a spec that is not kept: its params may share the memory of
// body.
func parseRecord(body []byte, queue, producerKey string, id ID) (Spec, error) {
	s, err := parseWithKey(body)
	if err != nil {
		return Spec{}, err
	}
	if s.keyIsNote(queue, producerKey, id) {
		s.Key = nil
	}
	if err := s.UseKey(); err != nil {
		return s, err
	}
	return s, s.Validate()
}

// KeyOf returns the key that [WithKey] added to the body of the record of a job, "" if there
// is none: the producer gave no key, or a UUID, or the record is one that debounced the job, or a
// client has generated the key.
func KeyOf(body []byte, queue string, id ID) string {
	at := bytes.LastIndex(body, []byte(`,"`+recordKey+`":`))
	if at < 0 {
		return ""
	}
	var key string
	text := bytes.TrimSuffix(body[at+len(recordKey)+4:], []byte("}"))
	if json.Unmarshal(text, &key) != nil {
		return ""
	}
	if named, err := KeyID(queue, key); err != nil || named != id || isGenerated(key) {
		return ""
	}
	return key
}

// isGenerated reports whether a key is one that our clients make for a job without a key, so
// that they can repeat the request: "auto-" and at least 26 letters and digits. It is not a
// UUID, which a node would have to look up first.
func isGenerated(key string) bool {
	random, found := strings.CutPrefix(key, "auto-")
	return found && len(random) >= 26 && !strings.ContainsFunc(random, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}
