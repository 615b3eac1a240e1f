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

// find returns a dispatch and the index of its line. For an unknown id, r is nil
// and i is the index of a new line.
func (d *dispatches) find(id string) (i int, r *record, err error) {
	if d.index != nil {
		i, ok := d.index[id]
		if !ok {
			return len(d.lines), nil, nil
		}
		r, err = readRecord(d.lines[i])
		return i, r, err
	}
	start := []byte(`{"request_id":"` + id + `",`)
	plain := isPlain(id)
	for i, line := range d.lines {
		if plain && !bytes.HasPrefix(line, start) {
			continue
		}
		if r, err = readRecord(line); err != nil || r.RequestID == id {
			return i, r, err
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

func readRecord(line []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, err
	}
	r.dropNull()
	return r, nil
}

// dropNull removes metadata that is null, which means the same as none.
func (r *record) dropNull() {
	if bytes.Equal(r.Metadata, []byte("null")) {
		r.Metadata = nil
	}
}

// put writes a dispatch to line i, or appends it if i is a new line.
func (d *dispatches) put(i int, r *record) error {
	r.dropNull()
	line, err := marshal(r)
	if err != nil {
		return err
	}
	if i < len(d.lines) {
		d.lines[i] = line
		return nil
	}
	d.lines = append(d.lines, line)
	if d.index != nil {
		d.index[r.RequestID] = i
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
