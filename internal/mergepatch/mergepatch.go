// Package mergepatch changes JSON objects by JSON merge patches (RFC 7396).
package mergepatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrNotObject is returned for a text that is not a JSON object.
var ErrNotObject = errors.New("it is not a JSON object")

// Apply returns the object in target as the object in patch changes it: keys of the patch
// replace those of target, objects are merged, and null removes a key. Numbers keep their
// digits. Keys of the result are sorted. An empty target is {}.
func Apply(target, patch []byte) ([]byte, error) {
	changes, err := object(patch)
	if err != nil {
		return nil, fmt.Errorf("merge patch: %w", err)
	}
	old := map[string]any{}
	if len(bytes.TrimSpace(target)) > 0 {
		if old, err = object(target); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(merge(old, changes)); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// Check returns an error if patch is not a JSON object.
func Check(patch []byte) error {
	_, err := object(patch)
	return err
}

// object decodes a JSON object. Numbers stay as they are written.
func object(text []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more follows the JSON object")
	}
	members, ok := value.(map[string]any)
	if !ok {
		return nil, ErrNotObject
	}
	return members, nil
}

// merge changes target by patch, as MergePatch in RFC 7396.
func merge(target, patch map[string]any) map[string]any {
	for key, change := range patch {
		switch change := change.(type) {
		case nil:
			delete(target, key)
		case map[string]any:
			old, _ := target[key].(map[string]any)
			if old == nil {
				old = map[string]any{}
			}
			target[key] = merge(old, change)
		default:
			target[key] = change
		}
	}
	return target
}
