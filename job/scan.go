package job

import "bytes"

// Every job's record is read twice on its way, so the form that nearly all of
// them have is read here, without reflection and in one pass. Whatever is
// unusual is left to encoding/json, which alone says what is wrong: what is
// accepted here it accepts too, with the same outcome.

// ScanSpec reads a body of the usual form, without checking the ranges of its
// fields. False means nothing but that somebody else has to read it.
func ScanSpec(body []byte) (Spec, bool) {
	var s Spec
	ok := s.scan(body)
	return s, ok
}

// scanDepth is how deep params may be nested to be read here.
const scanDepth = 32

// scan reads a body of simple fields. False means nothing but that somebody
// else has to read it; s is then to be thrown away.
func (s *Spec) scan(body []byte) bool {
	i := skipBlanks(body, 0)
	if i == len(body) || body[i] != '{' {
		return false
	}
	for more := true; more; {
		i = skipBlanks(body, i+1)
		key := i
		if i = skipString(body, i); i < 0 {
			return false
		}
		name := body[key+1 : i-1]
		if i = skipBlanks(body, i); i == len(body) || body[i] != ':' {
			return false
		}
		if i = s.scanField(name, body, skipBlanks(body, i+1)); i < 0 {
			return false
		}
		if i = skipBlanks(body, i); i == len(body) || body[i] != ',' && body[i] != '}' {
			return false
		}
		more = body[i] == ','
	}
	return skipBlanks(body, i+1) == len(body)
}

// scanField reads the value at i and gives the index behind it, or -1. A name
// that comes twice is somebody else's to read.
func (s *Spec) scanField(name, body []byte, i int) int {
	switch string(name) {
	case "function":
		end := skipString(body, i)
		if end < 0 || s.Function != "" || !plainText(body[i+1:end-1]) {
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
		return scanCount(&s.Priority, body, i)
	case "max_attempts":
		return scanCount(&s.MaxAttempts, body, i)
	case "timeout_ms":
		return scanCount(&s.TimeoutMS, body, i)
	case "retry_interval_ms":
		return scanCount(&s.RetryInterval, body, i)
	case "delay_ms":
		return scanCount(&s.DelayMS, body, i)
	case "result_ttl_ms":
		return scanCount(&s.ResultTTLMS, body, i)
	case "unique_key":
		return scanText(&s.UniqueKey, body, i)
	case "unique_ttl_ms":
		return scanCount(&s.UniqueTTLMS, body, i)
	}
	return -1
}

// scanText reads a string that stands for itself.
func scanText(into **string, body []byte, i int) int {
	end := skipString(body, i)
	if end < 0 || *into != nil || !plainText(body[i+1:end-1]) {
		return -1
	}
	text := string(body[i+1 : end-1])
	*into = &text
	return end
}

// scanCount reads a whole number of up to 18 digits.
func scanCount(into **int64, body []byte, i int) int {
	begin, n := i, int64(0)
	for ; i < len(body) && body[i] >= '0' && body[i] <= '9'; i++ {
		n = 10*n + int64(body[i]-'0')
	}
	digits := i - begin
	if *into != nil || digits == 0 || digits > 18 || digits > 1 && body[begin] == '0' {
		return -1
	}
	// A fraction or an exponent shows as no end of the value.
	*into = &n
	return i
}

// plainText is text that stands for itself.
func plainText(b []byte) bool {
	for _, c := range b {
		if c == '\\' || c >= 0x80 {
			return false
		}
	}
	return true
}

func skipBlanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue gives the index behind the JSON value at i, or -1 if it is none or
// nested too deep.
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

// skipNested skips an object or an array.
func skipNested(b []byte, i, depth int) int {
	if depth == 0 {
		return -1
	}
	object, end := b[i] == '{', b[i]+2 // of both kinds, '}' and ']' come two later
	if i = skipBlanks(b, i+1); i < len(b) && b[i] == end {
		return i + 1
	}
	for {
		if object {
			if i = skipString(b, skipBlanks(b, i)); i < 0 {
				return -1
			}
			if i = skipBlanks(b, i); i == len(b) || b[i] != ':' {
				return -1
			}
			i++
		}
		if i = skipValue(b, skipBlanks(b, i), depth-1); i < 0 {
			return -1
		}
		if i = skipBlanks(b, i); i == len(b) {
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

// skipString skips a string with its quotes. One with an escape of the \u kind
// counts as unusual.
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

func skipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

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

// skipDigits skips one or more.
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
