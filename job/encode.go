package job

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Most accepted jobs are written as a record, so this is done here without reflection, and
// without the second pass in which encoding/json checks what a marshaler returned. The bytes
// are those of [json.Marshal].

// Encode returns the JSON of s, exactly as [json.Marshal] does.
func (s *Spec) Encode() ([]byte, error) {
	if text, ok := s.encode(); ok {
		return text, nil
	}
	return json.Marshal(s)
}

// encode returns the JSON of s. False means that [json.Marshal] has to encode it, or has the
// error.
func (s *Spec) encode() (text []byte, ok bool) {
	if s.Blob != nil || s.Indexed != nil || len(s.Params) > 0 && !isObject(s.Params) {
		return nil, false
	}
	b := make([]byte, 0, 128+len(s.Function)+len(s.Params)+base64.StdEncoding.EncodedLen(len(s.Payload)))
	// Each field begins with a comma; the first one becomes the opening brace.
	if s.Function != "" {
		b = AppendText(append(b, `,"function":`...), s.Function)
	}
	if len(s.Params) > 0 {
		b = appendCompact(append(b, `,"params":`...), s.Params)
	}
	if len(s.Payload) > 0 {
		b = append(b, `,"payload_msgpack":"`...)
		b = append(base64.StdEncoding.AppendEncode(b, s.Payload), '"')
	}
	if s.RunAt != nil {
		if b, ok = appendTime(append(b, `,"run_at":`...), *s.RunAt); !ok {
			return nil, false
		}
	}
	b = appendOptInt(b, `,"delay_ms":`, s.DelayMS)
	b = appendOptInt(b, `,"priority":`, s.Priority)
	b = appendOptInt(b, `,"max_attempts":`, s.MaxAttempts)
	b = appendOptInt(b, `,"timeout_ms":`, s.TimeoutMS)
	b = appendOptInt(b, `,"retry_interval_ms":`, s.RetryInterval)
	if s.RetryOnTimeout != nil {
		b = strconv.AppendBool(append(b, `,"retry_on_timeout":`...), *s.RetryOnTimeout)
	}
	b = appendOptInt(b, `,"result_ttl_ms":`, s.ResultTTLMS)
	if len(s.Trace) > 0 {
		b = appendTexts(append(b, `,"trace_context":`...), s.Trace)
	}
	b = appendOptText(b, `,"unique_key":`, s.UniqueKey)
	b = appendOptInt(b, `,"unique_ttl_ms":`, s.UniqueTTLMS)
	b = appendOptText(b, `,"unique_until":`, s.UniqueUntil)
	b = appendOptText(b, `,"rate_limit_key":`, s.RateLimitKey)
	b = appendOptInt(b, `,"rate_limit_ms":`, s.RateLimitMS)
	b = appendOptText(b, `,"debounce_key":`, s.DebounceKey)
	b = appendOptInt(b, `,"debounce_ms":`, s.DebounceMS)
	b = appendOptText(b, `,"limit_key":`, s.LimitKey)
	b = appendOptText(b, `,"key":`, s.Key)
	if len(s.Limits) > 0 {
		b = appendTexts(append(b, `,"limits":`...), s.Limits)
	}
	if len(s.Tags) > 0 {
		b = appendList(append(b, `,"tags":`...), s.Tags)
	}
	if len(s.Meta) > 0 {
		b = appendTexts(append(b, `,"meta":`...), s.Meta)
	}
	if s.ExpiresAt != nil {
		if b, ok = appendTime(append(b, `,"expires_at":`...), *s.ExpiresAt); !ok {
			return nil, false
		}
	}
	b = appendOptInt(b, `,"expires_in_ms":`, s.ExpiresInMS)
	if len(b) == 0 {
		return []byte("{}"), true
	}
	b[0] = '{'
	return append(b, '}'), true
}

// isObject reports whether text is a JSON object, and nothing else.
func isObject(text []byte) bool {
	return skipObject(text, 0) == len(text) || isJSONObject(text) && json.Valid(text)
}

// appendOptInt appends a field with a number, unless n is nil.
func appendOptInt(b []byte, name string, n *int64) []byte {
	if n == nil {
		return b
	}
	return strconv.AppendInt(append(b, name...), *n, 10)
}

// appendOptText appends a field with a string, unless text is nil.
func appendOptText(b []byte, name string, text *string) []byte {
	if text == nil {
		return b
	}
	return AppendText(append(b, name...), *text)
}

// appendTime appends a time as a string; ok is false if it has no form in JSON.
func appendTime(b []byte, t time.Time) (text []byte, ok bool) {
	b, err := t.AppendText(append(b, '"'))
	return append(b, '"'), err == nil
}

// appendList appends an array with strings.
func appendList(b []byte, texts []string) []byte {
	b = append(b, '[')
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendText(b, text)
	}
	return append(b, ']')
}

// appendTexts appends an object with strings, in the order of their names.
func appendTexts(b []byte, texts map[string]string) []byte {
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(texts)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendText(append(AppendText(b, name), ':'), texts[name])
	}
	return append(b, '}')
}

// AppendText appends a string in quotes, exactly as [json.Marshal] does.
func AppendText(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || isSpecial[c] && c != ' ' {
			quoted, _ := json.Marshal(text) // cannot fail
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), text...), '"')
}

// isSpecial has the bytes of valid JSON that are not always copied as they are, the quotes,
// and what begins U+2028 and U+2029.
var isSpecial = [256]bool{'"': true, '\\': true, ' ': true, '\t': true, '\n': true, '\r': true, '<': true, '>': true, '&': true, 0xe2: true}

// appendCompact appends text, which is valid JSON, without white space between its values,
// and with the characters <, >, &, U+2028 and U+2029 escaped.
func appendCompact(b, text []byte) []byte {
	const hex = "0123456789abcdef"
	copied, inString := 0, false // text[:copied] has been appended
	for i := 0; i < len(text); i++ {
		c := text[i]
		if !isSpecial[c] {
			continue
		}
		switch {
		case c == '"':
			inString = !inString
		case c == '\\':
			i++
		case c == '<' || c == '>' || c == '&':
			b = append(append(b, text[copied:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&0xf])
			copied = i + 1
		case c == 0xe2:
			if i+2 < len(text) && text[i+1] == 0x80 && text[i+2]&^1 == 0xa8 {
				b = append(append(b, text[copied:i]...), '\\', 'u', '2', '0', '2', hex[text[i+2]&0xf])
				copied = i + 3
				i += 2
			}
		case !inString: // white space
			b = append(b, text[copied:i]...)
			copied = i + 1
		}
	}
	return append(b, text[copied:]...)
}
