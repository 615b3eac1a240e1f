package frame

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
)

// recordingGate is a gate that records its calls and how much was read before each.
type recordingGate struct {
	received func() int
	lines    []string
	err      error
}

func (g *recordingGate) Started(size int) { g.write("begun", size) }
func (g *recordingGate) Reserve(size int) error {
	g.write("hold", size)
	return g.err
}
func (g *recordingGate) write(what string, size int) {
	g.lines = append(g.lines, fmt.Sprint(what, " ", size, " at ", g.received()))
}

// slowReader returns at most step bytes per read.
type slowReader struct {
	data []byte
	step int
	at   int
}

func (s *slowReader) Read(b []byte) (int, error) {
	if s.at == len(s.data) {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), s.step)], s.data[s.at:])
	s.at += n
	return n, nil
}

// TestGate checks that Started is called when a frame's length has arrived and the
// rest has not, and Reserve for a large frame when UngatedBytes of it have
// arrived.
func TestGate(t *testing.T) {
	for _, c := range []struct {
		size, step int
		want       []string
	}{
		{100, 200, nil},
		{100, 50, []string{"begun 100 at 50"}},
		{UngatedBytes, 1, []string{"begun 65536 at 4"}},
		{UngatedBytes + 1, 4, []string{"begun 65537 at 4", "hold 65537 at 65540"}},
		{1 << 20, 1 << 30, []string{"begun 1048576 at 512", "hold 1048576 at 65540"}},
	} {
		s := &slowReader{data: Append(nil, make([]byte, c.size)), step: c.step}
		d := &recordingGate{received: func() int { return s.at }}
		r := NewReader(s, 1<<20)
		r.SetGate(d)
		if b, err := r.Next(); err != nil || len(b) != c.size {
			t.Errorf("%d bytes, %d a read: %d bytes, %v", c.size, c.step, len(b), err)
		}
		if !slices.Equal(d.lines, c.want) {
			t.Errorf("%d bytes, %d a read: the gate recorded %q, want %q", c.size, c.step, d.lines, c.want)
		}
	}
}

// TestGate_Refuses checks that a frame that the gate refuses is not read.
func TestGate_Refuses(t *testing.T) {
	full := errors.New("full")
	s := &slowReader{data: Append(nil, make([]byte, 1<<20)), step: 4096}
	r := NewReader(s, 1<<20)
	r.SetGate(&recordingGate{received: func() int { return s.at }, err: full})
	if _, err := r.Next(); !errors.Is(err, full) {
		t.Errorf("a frame that the gate refused gave %v", err)
	}
	if s.at > UngatedBytes+2*4096 {
		t.Errorf("%d bytes were read of a frame that the gate refused", s.at)
	}
}
