package job

import "bytes"

// MaxDepth is how deep arrays and objects may be nested in a value that a job carries: its params
// or payload, its result, the details of an error, and the data of a progress. {"to":["ann"]} is
// nested 2 deep. The bound leaves room for the message that contains the value: a frame of Overhop
// may be nested 128 deep.
const MaxDepth = 120

// Depth returns how deep arrays and objects are nested in text, which is valid JSON: 0 for a
// number, 1 for {}.
func Depth(text []byte) (depth int) {
	inText, open := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c == '{' || c == '[':
			open++
			depth = max(depth, open)
		case c == '}' || c == ']':
			open--
		}
	}
	return depth
}

// CheckDepth returns an [*InvalidError] if text, which is valid JSON, is nested more than
// [MaxDepth] deep. name is what text is, such as "params".
func CheckDepth(name string, text []byte) error {
	if bytes.Count(text, []byte("{"))+bytes.Count(text, []byte("[")) <= MaxDepth { // much faster than Depth
		return nil
	}
	if depth := Depth(text); depth > MaxDepth {
		return invalid("%s: arrays and objects are nested %d deep; at most %d", name, depth, MaxDepth)
	}
	return nil
}
