package job

import "bytes"

// Every record is parsed twice on its way, so the form that nearly all records
// have is parsed here, without reflection and in one pass. Anything else is
// left to encoding/json, which also produces all error messages. Whatever this
// parser accepts, encoding/json accepts with the same result.

// ScanSpec parses a body of the usual form; it does not check the ranges of the
// fields. False means only that encoding/json has to parse the body, which may
// still be valid.
func ScanSpec(body []byte) (Spec, bool) {
	var s Spec
	ok := s.scan(body)
	return s, ok
}

// scanDepth is how deep params may be nested to be parsed here.
const scanDepth = 32

// scan parses a body of simple fields. If it returns false, encoding/json has
// to parse the body and s must be discarded.
func (s *Spec) scan(body []byte) bool {
	i := skipSpace(body, 0)
	if i == len(body) || body[i] != '{' {
		return false
	}
	for more := true; more; {
		i = skipSpace(body, i+1)
		key := i
		if i = skipString(body, i); i < 0 {
			return false
		}
		name := body[key+1 : i-1]
		if i = skipSpace(body, i); i == len(body) || body[i] != ':' {
			return false
		}
		if i = s.scanField(name, body, skipSpace(body, i+1)); i < 0 {
			return false
		}
		if i = skipSpace(body, i); i == len(body) || body[i] != ',' && body[i] != '}' {
			return false
		}
		more = body[i] == ','
	}
	return skipSpace(body, i+1) == len(body)
}

// scanField parses the value of field name at i and returns the index after it,
// or -1 if encoding/json has to parse the body, for example because a name
// occurs twice.
func (s *Spec) scanField(name, body []byte, i int) int {
	switch string(name) {
	case "function":
		end := skipString(body, i)
		if end < 0 || s.Function != "" || !isPlainASCII(body[i+1:end-1]) {
			return -1
		}
		s.Function = string(body[i+1 : end-1])
		return end
	case "params":
		if i == len(body) || body[i] != '{' || s.Params != nil {
			return -1
		}
		end := skipValue(body, i, scanDepth)
		if end > 0 {
			s.Params = bytes.Clone(body[i:end])
		}
		return end
	case "priority":
		return scanInt(&s.Priority, body, i)
	case "max_attempts":
		return scanInt(&s.MaxAttempts, body, i)
	case "timeout_ms":
		return scanInt(&s.TimeoutMS, body, i)
	case "retry_interval_ms":
		return scanInt(&s.RetryInterval, body, i)
	case "delay_ms":
		return scanInt(&s.DelayMS, body, i)
	case "result_ttl_ms":
		return scanInt(&s.ResultTTLMS, body, i)
	case "unique_key":
		return scanString(&s.UniqueKey, body, i)
	case "unique_ttl_ms":
		return scanInt(&s.UniqueTTLMS, body, i)
	}
	return -1
}

// scanString parses a string without escapes and non-ASCII characters.
func scanString(dst **string, body []byte, i int) int {
	end := skipString(body, i)
	if end < 0 || *dst != nil || !isPlainASCII(body[i+1:end-1]) {
		return -1
	}
	text := string(body[i+1 : end-1])
	*dst = &text
	return end
}

// scanInt parses a non-negative integer of up to 18 digits.
func scanInt(dst **int64, body []byte, i int) int {
	begin, n := i, int64(0)
	for ; i < len(body) && body[i] >= '0' && body[i] <= '9'; i++ {
		n = 10*n + int64(body[i]-'0')
	}
	digits := i - begin
	if *dst != nil || digits == 0 || digits > 18 || digits > 1 && body[begin] == '0' {
		return -1
	}
	// In front of a fraction or an exponent the caller finds neither ',' nor
	// '}' and gives up.
	*dst = &n
	return i
}

// isPlainASCII reports whether b, the inside of a JSON string, is the string's
// value as it is.
func isPlainASCII(b []byte) bool {
	for _, c := range b {
		if c == '\\' || c >= 0x80 {
			return false
		}
	}
	return true
}

// skipSpace returns the index of the first byte at or after i that is not white
// space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index after the JSON value at i, or -1 if there is no
// value or it is nested more than depth levels deep.
func skipValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch c := b[i]; {
	case c == '"':
		return skipString(b, i)
	case c == '{' || c == '[':
		return skipNested(b, i, depth)
	case c == 't':
		return skipWord(b, i, "true")
	case c == 'f':
		return skipWord(b, i, "false")
	case c == 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

// skipNested returns the index after the object or array at i, or -1.
func skipNested(b []byte, i, depth int) int {
	if depth == 0 {
		return -1
	}
	object, end := b[i] == '{', b[i]+2 // '}' is '{'+2 and ']' is '['+2
	if i = skipSpace(b, i+1); i < len(b) && b[i] == end {
		return i + 1
	}
	for {
		if object {
			if i = skipString(b, skipSpace(b, i)); i < 0 {
				return -1
			}
			if i = skipSpace(b, i); i == len(b) || b[i] != ':' {
				return -1
			}
			i++
		}
		if i = skipValue(b, skipSpace(b, i), depth-1); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i == len(b) {
			return -1
		}
		switch b[i] {
		case end:
			return i + 1
		case ',':
			i++
		default:
			return -1
		}
	}
}

// skipString returns the index after the string at i, quotes included, or -1.
// It does not accept \u escapes.
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
			if i++; i == len(b) || bytes.IndexByte([]byte(`"\/bfnrt`), b[i]) < 0 {
				return -1
			}
		}
	}
	return -1
}

// skipWord returns the index after the literal word at i, or -1.
func skipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// skipNumber returns the index after the number at i, or -1.
func skipNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	first := i
	if i = skipDigits(b, i); i < 0 || b[first] == '0' && i > first+1 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

// skipDigits returns the index after one or more digits at i, or -1.
func skipDigits(b []byte, i int) int {
	begin := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	if i == begin {
		return -1
	}
	return i
}
