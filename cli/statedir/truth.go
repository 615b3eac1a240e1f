package statedir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// truthFile is the one that counts; see the package's comment.
const truthFile = "yardmaster.state"

// truthFormat changes with whatever another release could not read.
const truthFormat = 1

// The truth is lines of JSON: a mark, a preface, then the dispatches in the
// order they were queued, then the events in the order they happened.
type (
	// mark says what the file is, and whether it is whole.
	mark struct {
		Format int    `json:"yardmaster_state"`
		SHA256 string `json:"sha256"` // of all that follows, in hex
	}
	preface struct {
		head
		Dispatches int     `json:"dispatches"` // how many lines
		Events     int     `json:"events"`     // how many lines
		Views      digests `json:"views"`      // what the views should be
		Before     digests `json:"before"`     // what lay in their places when this was written
	}
	// digests are hashes of files by name.
	digests map[string]string
)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// seal writes the truth: the state, and the views as they should be and were.
func (s *state) seal(should, were digests) ([]byte, error) {
	first, err := marshal(preface{
		head: s.head, Dispatches: len(s.dispatches.lines), Events: len(s.events), Views: should, Before: were,
	})
	if err != nil {
		return nil, err
	}
	body := [][]byte{first}
	body = append(append(body, s.dispatches.lines...), s.events...)
	text := append(bytes.Join(body, []byte("\n")), '\n')
	seal, err := marshal(mark{truthFormat, digest(text)})
	if err != nil {
		return nil, err
	}
	return append(append(seal, '\n'), text...), nil
}

// unseal reads a truth. The hash decides whether it is whole; what follows can
// then be trusted to be what some release has written.
func unseal(file []byte) (s *state, should, were digests, err error) {
	first, body, _ := bytes.Cut(file, []byte("\n"))
	var m mark
	if err := json.Unmarshal(first, &m); err != nil {
		return nil, nil, nil, fmt.Errorf("its first line: %w", err)
	}
	switch {
	case m.Format > truthFormat:
		return nil, nil, nil, fmt.Errorf("%w: it has format %d, this release reads %d", errNewer, m.Format, truthFormat)
	case m.Format < 1:
		return nil, nil, nil, errors.New("its first line names no format")
	case m.SHA256 != digest(body):
		return nil, nil, nil, errors.New("its content does not match its checksum")
	}
	s = new(state)
	next := func() (line []byte) {
		line, body, _ = bytes.Cut(body, []byte("\n"))
		return line
	}
	var p preface
	if err := json.Unmarshal(next(), &p); err != nil {
		return nil, nil, nil, fmt.Errorf("its second line: %w", err)
	}
	s.head = p.head
	for range p.Dispatches {
		s.dispatches.lines = append(s.dispatches.lines, next())
	}
	for range p.Events {
		s.events = append(s.events, next())
	}
	return s, p.Views, p.Before, nil
}

var errNewer = errors.New("a newer release wrote it")
