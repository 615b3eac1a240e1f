package job

import (
	"strings"
	"unicode/utf8"
)

// Bounds of the values of params by which jobs are found.
const (
	MaxIndexPaths = 8   // of a queue
	MaxIndexed    = 256 // bytes of a value; a longer one is found by its first bytes
)

// IndexedParams returns the values at paths of params, by which the job is found, see
// [QueueConfig.Index]. The names of the labels are the paths without "params.". The params are a JSON object or
// empty. A number has its shortest decimal form, as in [KeyAt]. What is missing, null, empty, an
// array or an object has no label.
func IndexedParams(params []byte, paths []string) (labels []Label) {
	if len(paths) == 0 || len(params) == 0 {
		return nil
	}
	top := fields(params)
	for _, path := range paths {
		name := strings.TrimPrefix(path, "params.")
		first, rest, nested := strings.Cut(name, ".")
		value := []byte(top[first])
		if nested {
			value = valueAt(value, strings.Split(rest, "."))
		}
		if value == nil || value[0] == '{' || value[0] == '[' || value[0] == 'n' {
			continue
		}
		if text := cutValue(scalar(value)); text != "" {
			labels = append(labels, Label{name, text})
		}
	}
	return labels
}

// IndexedValues are the values of [IndexedParams] by their names. The record of a job whose params are in a
// blob has them, so that the blob need not be read.
type IndexedValues map[string]string

// Labels returns the values at paths, see [IndexedParams].
func (v IndexedValues) Labels(paths []string) (labels []Label) {
	for _, path := range paths {
		name := strings.TrimPrefix(path, "params.")
		if text := cutValue(v[name]); text != "" {
			labels = append(labels, Label{name, text})
		}
	}
	return labels
}

// IndexedValuesOf returns values by their names, nil if there are none.
func IndexedValuesOf(labels []Label) IndexedValues {
	if len(labels) == 0 {
		return nil
	}
	v := make(IndexedValues, len(labels))
	for _, l := range labels {
		v[l.Name] = l.Value
	}
	return v
}

// cutValue returns the first [MaxIndexed] bytes of a text.
func cutValue(text string) string {
	if len(text) <= MaxIndexed {
		return text
	}
	end := MaxIndexed
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end])
}
