package frame

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
)

// diary is a gate that writes down what it hears, and what had come by then.
type diary struct {
	come  func() int
	lines []string
	err   error
}

func (d *diary) Begun(size int) { d.write("begun", size) }
func (d *diary) Hold(size int) error {
	d.write("hold", size)
	return d.err
}
func (d *diary) write(what string, size int) {
	d.lines = append(d.lines, fmt.Sprint(what, " ", size, " at ", d.come()))
}

// trickle gives step bytes a read.
type trickle struct {
	data []byte
	step int
	at   int
}

func (s *trickle) Read(b []byte) (int, error) {
	if s.at == len(s.data) {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), s.step)], s.data[s.at:])
	s.at += n
	return n, nil
}

// The gate hears of a frame when its length is here and the rest is not, and is
// asked for a large one when what is free of it is here.
func TestGate(t *testing.T) {
	for _, c := range []struct {
		size, step int
		want       []string
	}{
		{100, 200, nil},
		{100, 50, []string{"begun 100 at 50"}},
		{FreeBytes, 1, []string{"begun 65536 at 4"}},
		{FreeBytes + 1, 4, []string{"begun 65537 at 4", "hold 65537 at 65540"}},
		{1 << 20, 1 << 30, []string{"begun 1048576 at 512", "hold 1048576 at 65540"}},
	} {
		s := &trickle{data: Append(nil, make([]byte, c.size)), step: c.step}
		d := &diary{come: func() int { return s.at }}
		r := NewReader(s, 1<<20)
		r.SetGate(d)
		if b, err := r.Next(); err != nil || len(b) != c.size {
			t.Errorf("%d bytes, %d a read: %d bytes, %v", c.size, c.step, len(b), err)
		}
		if !slices.Equal(d.lines, c.want) {
			t.Errorf("%d bytes, %d a read: the gate heard %q, want %q", c.size, c.step, d.lines, c.want)
		}
	}
}

// What the gate does not let in is not read.
func TestGate_Refuses(t *testing.T) {
	full := errors.New("full")
	s := &trickle{data: Append(nil, make([]byte, 1<<20)), step: 4096}
	r := NewReader(s, 1<<20)
	r.SetGate(&diary{come: func() int { return s.at }, err: full})
	if _, err := r.Next(); !errors.Is(err, full) {
		t.Errorf("a frame that the gate refused gave %v", err)
	}
	if s.at > FreeBytes+2*4096 {
		t.Errorf("%d bytes were read of a frame that the gate refused", s.at)
	}
}
