package job

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// Every record is parsed two or three times: by the node that accepts it unless it
// is published directly, by the authority, and by the node that runs the job. So
// the form that nearly all records have is parsed here, without reflection and in
// one pass. Anything else is left to encoding/json, which also produces all error
// messages. Whatever this parser accepts, encoding/json accepts with the same result.

// ScanSpec parses a body of the usual form; it does not check the ranges of the
// fields. The params share the memory of body. False means only that encoding/json has to
// parse the body, which may still be valid.
func ScanSpec(body []byte) (Spec, bool) {
	var s Spec
	ok := s.scan(body, true)
	return s, ok
}

// scan parses a body into s, a zero Spec, withKey with the text under "key", and else without
// it. The params are those in body, not a copy. If scan returns false, encoding/json has
// to parse the body and s must be discarded.
func (s *Spec) scan(body []byte, withKey bool) bool {
	i := skipSpace(body, 0)
	if i == len(body) || body[i] != '{' {
		return false
	}
	for hasNext := true; hasNext; {
		nameStart := skipSpace(body, i+1)
		nameEnd := skipString(body, nameStart)
		if nameEnd < 0 {
			return false
		}
		if i = skipSpace(body, nameEnd); i == len(body) || body[i] != ':' {
			return false
		}
		name := body[nameStart+1 : nameEnd-1]
		if i = skipSpace(body, i+1); !withKey && string(name) == recordKey {
			i = skipString(body, i)
		} else {
			i = s.scanField(name, body, i)
		}
		if i < 0 {
			return false
		}
		if i = skipSpace(body, i); i == len(body) || body[i] != ',' && body[i] != '}' {
			return false
		}
		hasNext = body[i] == ','
	}
	return skipSpace(body, i+1) == len(body)
}

// scanField parses the value of the field called name, which begins at body[i].
// It returns the index after the value, or -1 if encoding/json has to parse the
// body, for example because a name occurs twice.
func (s *Spec) scanField(name, body []byte, i int) int {
	switch string(name) {
	case "function":
		text, end := plainString(body, i)
		if end < 0 || s.Function != "" {
			return -1
		}
		s.Function = string(text)
		return end
	case "params":
		end := skipObject(body, i)
		if end < 0 || s.Params != nil {
			return -1
		}
		s.Params = body[i:end:end]
		return end
	case "priority":
		return scanInt(&s.Priority, body, i)
	case "max_attempts":
		return scanInt(&s.MaxAttempts, body, i)
	case "timeout_ms":
		return scanInt(&s.TimeoutMS, body, i)
	case "retry_interval_ms":
		return scanInt(&s.RetryInterval, body, i)
	case "retry_on_timeout":
		return scanBool(&s.RetryOnTimeout, body, i)
	case "delay_ms":
		return scanInt(&s.DelayMS, body, i)
	case "result_ttl_ms":
		return scanInt(&s.ResultTTLMS, body, i)
	case "unique_key":
		return scanString(&s.UniqueKey, body, i)
	case "unique_until":
		return scanString(&s.UniqueUntil, body, i)
	case "unique_ttl_ms":
		return scanInt(&s.UniqueTTLMS, body, i)
	case "limit_key":
		return scanString(&s.LimitKey, body, i)
	case recordKey:
		return scanString(&s.Key, body, i)
	case "expires_in_ms":
		return scanInt(&s.ExpiresInMS, body, i)
	}
	return -1
}

// scanBool parses the boolean that begins at body[i] and sets *field to it. It
// returns the index after it, or -1 if *field is already set or there is no
// boolean.
func scanBool(field **bool, body []byte, i int) int {
	if *field != nil {
		return -1
	}
	for _, value := range [...]bool{true, false} {
		if text := strconv.FormatBool(value); bytes.HasPrefix(body[i:], []byte(text)) {
			*field = &value
			return i + len(text)
		}
	}
	return -1
}

// scanString parses the string that begins at body[i] and sets *field to it. It
// returns the index after the string, or -1 if *field is already set or the
// string is not plain.
func scanString(field **string, body []byte, i int) int {
	text, end := plainString(body, i)
	if end < 0 || *field != nil {
		return -1
	}
	*field = new(string(text))
	return end
}

// plainString returns the string that begins at body[i], without its quotes,
// and the index after it. The index is -1 if there is no string there, or one
// with escapes or with characters that are not ASCII.
func plainString(body []byte, i int) (text []byte, end int) {
	if end = skipString(body, i); end < 0 {
		return nil, -1
	}
	text = body[i+1 : end-1]
	for _, c := range text {
		if c == '\\' || c >= 0x80 {
			return nil, -1
		}
	}
	return text, end
}

// scanInt parses the integer that begins at body[i] and sets *field to it. It
// returns the index after the integer, or -1 if *field is already set or there
// is no integer of 1 to 18 digits. A fraction or an exponent may follow; the
// caller expects something else there and gives up.
func scanInt(field **int64, body []byte, i int) int {
	begin, n := i, int64(0)
	for ; i < len(body) && body[i] >= '0' && body[i] <= '9'; i++ {
		n = 10*n + int64(body[i]-'0')
	}
	digits := i - begin
	hasLeadingZero := digits > 1 && body[begin] == '0'
	if *field != nil || digits == 0 || digits > 18 || hasLeadingZero {
		return -1
	}
	*field = &n
	return i
}

// skipSpace returns the index of the first byte at or after i that is not white
// space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the string that begins at b[i], quotes
// included, or -1 if there is no valid one, or one that escapes a character by
// its number.
func skipString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return -1
		case c == '\\':
			if i++; i == len(b) || strings.IndexByte(`"\/bfnrt`, b[i]) < 0 {
				return -1
			}
		}
	}
	return -1
}

// maxScanDepth is the deepest nesting of params that is parsed here.
const maxScanDepth = 32

// skipObject returns the index after the JSON object that begins at b[i], or -1
// if there is no valid one, or one nested more than maxScanDepth deep.
func skipObject(b []byte, i int) int {
	if i == len(b) || b[i] != '{' {
		return -1
	}
	return skipNested(b, i, maxScanDepth)
}

// skipNested returns the index after the object or array that begins at b[i], or
// -1 if it is not valid, or nested more than depth deep.
func skipNested(b []byte, i, depth int) int {
	if depth == 0 {
		return -1
	}
	isObject, closing := b[i] == '{', b[i]+2 // in ASCII, "[\]" and "{|}" are adjacent
	if i = skipSpace(b, i+1); i < len(b) && b[i] == closing {
		return i + 1
	}
	for {
		if isObject {
			if i = skipString(b, i); i < 0 {
				return -1
			}
			if i = skipSpace(b, i); i == len(b) || b[i] != ':' {
				return -1
			}
			i = skipSpace(b, i+1)
		}
		if i = skipValue(b, i, depth-1); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i == len(b) {
			return -1
		}
		if b[i] == closing {
			return i + 1
		}
		if b[i] != ',' {
			return -1
		}
		i = skipSpace(b, i+1)
	}
}

// skipValue is like skipNested, for any value; i may be len(b).
func skipValue(b []byte, i, depth int) int {
	switch {
	case i == len(b):
		return -1
	case b[i] == '"':
		return skipString(b, i)
	case b[i] == '{', b[i] == '[':
		return skipNested(b, i, depth)
	}
	end := i
	for end < len(b) && (b[end] >= '0' && b[end] <= '9' || b[end] >= 'a' && b[end] <= 'z' || strings.IndexByte("+-.E", b[end]) >= 0) {
		end++
	}
	if !json.Valid(b[i:end]) {
		return -1
	}
	return end
}
