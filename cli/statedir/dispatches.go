package statedir

import (
	"bytes"
	"encoding/json"
	"strings"
)

// dispatches are the records of dispatch.json, in the order they were queued.
type dispatches struct {
	lines [][]byte       // a record each, as written by put
	index map[string]int // of each request id; nil: the lines are searched
}

// record is a dispatch as dispatch.json shows it. Its first field stays the
// request id: lines are found by it.
type record struct {
	RequestID   string          `json:"request_id"`
	Target      string          `json:"target"`
	Status      string          `json:"status"`
	CreatedAt   string          `json:"created_at"`
	NotifiedAt  *string         `json:"notified_at"`
	DeliveredAt *string         `json:"delivered_at"`
	FailedAt    *string         `json:"failed_at"`
	Reason      *string         `json:"reason"` // the channel, once it is notified; why, once it has failed
	Metadata    json.RawMessage `json:"metadata"`
}

const (
	pending   = "pending"
	notified  = "notified"
	delivered = "delivered"
	failed    = "failed"
)

// find gives a dispatch and the number of its line; r is nil and the number
// that of a further line if there is none.
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

// isPlain tells that a text is the same in JSON, whoever writes it.
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

// dropNull takes metadata that is null for none, which is what it says.
func (r *record) dropNull() {
	if bytes.Equal(r.Metadata, []byte("null")) {
		r.Metadata = nil
	}
}

// put writes a dispatch into line i, or adds it behind the last.
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

// marshal writes a value as one line of JSON, without the line's end. Metadata
// stays as it was given, so that the same command given again is found to be
// the same.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
