package statedir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// stateFile is the authoritative file; see the package comment.
const stateFile = "yardmaster.state"

// stateFormat is increased by every change that earlier releases cannot read.
const stateFormat = 1

// The state file consists of lines of JSON: a fileHeader, a stateHeader, the
// dispatches in the order they were queued, and the events in the order they
// happened.
type (
	// fileHeader identifies the format and detects truncation and damage.
	fileHeader struct {
		Format int    `json:"yardmaster_state"`
		SHA256 string `json:"sha256"` // of everything after this line, in hex
	}
	stateHeader struct {
		summary
		Dispatches int     `json:"dispatches"` // number of lines
		Events     int     `json:"events"`     // number of lines
		Views      digests `json:"views"`      // the views as of this state
		Before     digests `json:"before"`     // the views that were there when this file was written
	}
	// digests are SHA-256 sums of files, in hex, by file name.
	digests map[string]string
)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// encode returns the content of the state file. want and previous are the sums of
// the views as of this state and as they are on disk.
func (s *state) encode(want, previous digests) ([]byte, error) {
	first, err := marshal(stateHeader{
		summary: s.summary, Dispatches: len(s.dispatches.lines), Events: len(s.events), Views: want, Before: previous,
	})
	if err != nil {
		return nil, err
	}
	body := [][]byte{first}
	body = append(append(body, s.dispatches.lines...), s.events...)
	text := append(bytes.Join(body, []byte("\n")), '\n')
	header, err := marshal(fileHeader{stateFormat, digest(text)})
	if err != nil {
		return nil, err
	}
	return append(append(header, '\n'), text...), nil
}

// decodeState decodes a state file. Once the checksum matches, the content is
// taken as written by some release and not validated further.
func decodeState(file []byte) (s *state, want, previous digests, err error) {
	first, body, _ := bytes.Cut(file, []byte("\n"))
	var m fileHeader
	if err := json.Unmarshal(first, &m); err != nil {
		return nil, nil, nil, fmt.Errorf("its first line: %w", err)
	}
	switch {
	case m.Format > stateFormat:
		return nil, nil, nil, fmt.Errorf("%w: it has format %d, this release reads %d", errNewerFormat, m.Format, stateFormat)
	case m.Format < 1:
		return nil, nil, nil, errors.New("its first line has no format")
	case m.SHA256 != digest(body):
		return nil, nil, nil, errors.New("its content does not match its checksum")
	}
	s = new(state)
	next := func() (line []byte) {
		line, body, _ = bytes.Cut(body, []byte("\n"))
		return line
	}
	var p stateHeader
	if err := json.Unmarshal(next(), &p); err != nil {
		return nil, nil, nil, fmt.Errorf("its second line: %w", err)
	}
	s.summary = p.summary
	for range p.Dispatches {
		s.dispatches.lines = append(s.dispatches.lines, next())
	}
	for range p.Events {
		s.events = append(s.events, next())
	}
	return s, p.Views, p.Before, nil
}
