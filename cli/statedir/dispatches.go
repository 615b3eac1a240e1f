package statedir

import (
	"bytes"
	"encoding/json"
	"strings"
)

// dispatches are the records of dispatch.json, in the order they were queued.
type dispatches struct {
	lines [][]byte       // one record each, as written by put
	index map[string]int // line by request id; if nil, find searches the lines
}

// record is a dispatch as stored in dispatch.json. The request id must be the
// first field, because find compares the start of a line.
type record struct {
	RequestID   string          `json:"request_id"`
	Target      string          `json:"target"`
	Status      string          `json:"status"`
	CreatedAt   string          `json:"created_at"`
	NotifiedAt  *string         `json:"notified_at"`
	DeliveredAt *string         `json:"delivered_at"`
	FailedAt    *string         `json:"failed_at"`
	Reason      *string         `json:"reason"` // the channel if notified, the reason if failed
	Metadata    json.RawMessage `json:"metadata"`
}

const (
	pending   = "pending"
	notified  = "notified"
	delivered = "delivered"
	failed    = "failed"
)

// find returns the dispatch with a request id, decoded, and the number of its
// line, from 0. For an unknown id it returns nil and the number that put gives to
// a new line.
func (d *dispatches) find(requestID string) (line int, found *record, err error) {
	if d.index != nil {
		line, exists := d.index[requestID]
		if !exists {
			return len(d.lines), nil, nil
		}
		found, err = decodeRecord(d.lines[line])
		return line, found, err
	}

	// A plain id stands unchanged at the start of its line, so most lines need not
	// be decoded.
	start := []byte(`{"request_id":"` + requestID + `",`)
	plain := isPlain(requestID)
	for line, text := range d.lines {
		if plain && !bytes.HasPrefix(text, start) {
			continue
		}
		if found, err = decodeRecord(text); err != nil || found.RequestID == requestID {
			return line, found, err
		}
	}
	return len(d.lines), nil, nil
}

// isPlain reports whether every JSON encoder writes text unchanged.
func isPlain(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool {
		return c < ' ' || c > '~' || strings.ContainsRune(`"\\/<>&`, c)
	})
}

func decodeRecord(line []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, err
	}
	r.dropNullMetadata()
	return r, nil
}

// dropNullMetadata removes metadata that is null, which means the same as none.
func (r *record) dropNullMetadata() {
	if bytes.Equal(r.Metadata, []byte("null")) {
		r.Metadata = nil
	}
}

// put stores r in a line that find returned: it replaces an existing line, and
// appends a new one.
func (d *dispatches) put(line int, r *record) error {
	r.dropNullMetadata()
	text, err := marshal(r)
	if err != nil {
		return err
	}
	if line < len(d.lines) {
		d.lines[line] = text
		return nil
	}
	d.lines = append(d.lines, text)
	if d.index != nil {
		d.index[r.RequestID] = line
	}
	return nil
}

// marshal returns v as one line of JSON, without the newline. It does not escape
// HTML, so that metadata stays as it was given and a repeated command compares
// equal.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
