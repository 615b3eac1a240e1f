package statedir

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// stateFile is the authoritative file; see the package comment.
const stateFile = "yardmaster.state"

// stateFormat is increased by every change that earlier releases cannot read.
const stateFormat = 2

// The state file consists of lines of JSON: a fileHeader, a stateHeader, the
// dispatches in the order they were queued, the messages in the order they were
// created, and the events in the order they happened.
type (
	// fileHeader identifies the format and detects truncation and damage.
	fileHeader struct {
		Format int    `json:"yardmaster_state"`
		SHA256 string `json:"sha256"` // of everything after this line, in hex
	}
	stateHeader struct {
		summary
		Dispatches int `json:"dispatches"` // number of lines
		Messages   int `json:"messages"`   // number of lines; none in format 1
		Events     int `json:"events"`     // number of lines
		viewDigests
	}
	// viewDigests are the digests of the views before and after a commit.
	viewDigests struct {
		Committed digests `json:"views"`  // of the views that belong to the state in this file
		Replaced  digests `json:"before"` // of the views on disk when this file was written
	}
	// digests are SHA-256 sums of files, in hex, by file name.
	digests map[string]string
)

// digest returns the SHA-256 sum of content, in hex.
func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// encode returns the content of the state file for s, with the digests of the views.
func (s *state) encode(views viewDigests) ([]byte, error) {
	header, err := marshal(stateHeader{
		summary: s.summary, Dispatches: len(s.dispatches.lines), Messages: len(s.messages), Events: len(s.events), viewDigests: views,
	})
	if err != nil {
		return nil, err
	}
	messages, err := s.messageLines()
	if err != nil {
		return nil, err
	}
	lines := slices.Concat([][]byte{header}, s.dispatches.lines, messages, s.events)
	body := append(bytes.Join(lines, []byte("\n")), '\n')

	first, err := marshal(fileHeader{stateFormat, digest(body)})
	if err != nil {
		return nil, err
	}
	return append(append(first, '\n'), body...), nil
}

// decodeState returns the state in a state file, and the digests of its views. A
// content that matches the file's checksum is not validated further, because a
// release of this program wrote it. The error of a file with a newer format is
// errNewerFormat.
func decodeState(file []byte) (*state, viewDigests, error) {
	first, body, _ := bytes.Cut(file, []byte("\n"))
	var format fileHeader
	if err := json.Unmarshal(first, &format); err != nil {
		return nil, viewDigests{}, fmt.Errorf("its first line: %w", err)
	}
	switch {
	case format.Format > stateFormat:
		return nil, viewDigests{}, fmt.Errorf("%w: it has format %d, this release reads %d", errNewerFormat, format.Format, stateFormat)
	case format.Format < 1:
		return nil, viewDigests{}, errors.New("its first line has no format")
	case format.SHA256 != digest(body):
		return nil, viewDigests{}, errors.New("its content does not match its checksum")
	}

	nextLine := func() (line []byte) {
		line, body, _ = bytes.Cut(body, []byte("\n"))
		return line
	}
	var header stateHeader
	if err := json.Unmarshal(nextLine(), &header); err != nil {
		return nil, viewDigests{}, fmt.Errorf("its second line: %w", err)
	}
	s := &state{summary: header.summary}
	for range header.Dispatches {
		s.dispatches.lines = append(s.dispatches.lines, nextLine())
	}
	for range header.Messages {
		if err := s.decodeMessage(nextLine()); err != nil {
			return nil, viewDigests{}, err
		}
	}
	for range header.Events {
		s.events = append(s.events, nextLine())
	}
	return s, header.viewDigests, nil
}
