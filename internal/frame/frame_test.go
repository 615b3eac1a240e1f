package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"
)

func TestNext_Reassembles(t *testing.T) {
	var stream []byte
	var want [][]byte
	for _, size := range []int{1, 2, 507, 508, 509, 512, 5000, 16 << 10, 70_000, 200_000, 3, 1} {
		payload := bytes.Repeat([]byte{byte(size), byte(size >> 8)}, size)[:size]
		want = append(want, payload)
		stream = Append(stream, payload)
	}
	for name, r := range map[string]io.Reader{
		"whole":     bytes.NewReader(stream),
		"byte-wise": iotest.OneByteReader(bytes.NewReader(stream)),
		"halves":    iotest.HalfReader(bytes.NewReader(stream)),
		"data+EOF":  iotest.DataErrReader(bytes.NewReader(stream)),
		"pieces":    &randomChunks{data: stream, rnd: rand.New(rand.NewPCG(1, 2))},
	} {
		frames := NewReader(r, 200_000)
		for i, w := range want {
			got, err := frames.Next()
			if err != nil || !bytes.Equal(got, w) {
				t.Fatalf("%s: frame %d has %d bytes and error %v, want %d bytes", name, i, len(got), err, len(w))
			}
		}
		if _, err := frames.Next(); err != io.EOF {
			t.Fatalf("%s: end of stream gave %v, want io.EOF", name, err)
		}
	}
}

// randomChunks reads between 1 and 700 bytes at a time.
type randomChunks struct {
	data []byte
	rnd  *rand.Rand
}

func (p *randomChunks) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), 1+p.rnd.IntN(700))], p.data)
	p.data = p.data[n:]
	return n, nil
}

func TestNext_Refuses(t *testing.T) {
	if _, err := NewReader(bytes.NewReader(make([]byte, 4)), 10).Next(); !errors.Is(err, ErrZeroLength) {
		t.Errorf("zero length gave %v", err)
	}
	var large *TooLargeError
	_, err := NewReader(bytes.NewReader(Append(nil, make([]byte, 11))), 10).Next()
	if !errors.As(err, &large) || large.Size != 11 || large.Limit != 10 {
		t.Errorf("11 bytes under a limit of 10 gave %v", err)
	}
	if _, err := NewReader(bytes.NewReader(Append(nil, make([]byte, 10))), 10).Next(); err != nil {
		t.Errorf("a frame as large as the limit gave %v", err)
	}
	for _, cut := range []int{1, 3, 4, 9} {
		if _, err := NewReader(bytes.NewReader(Append(nil, make([]byte, 10))[:cut]), 10).Next(); err != io.ErrUnexpectedEOF {
			t.Errorf("stream cut after %d bytes gave %v, want io.ErrUnexpectedEOF", cut, err)
		}
	}
}

// TestNext_BoundsAllocation checks that a peer that announces a large frame and
// sends little of it causes only a small allocation.
func TestNext_BoundsAllocation(t *testing.T) {
	const limit = 32 << 20
	for _, sent := range []int{0, 1, 1000, 100_000} {
		stream := binary.BigEndian.AppendUint32(nil, limit)
		stream = append(stream, make([]byte, sent)...)
		r := NewReader(bytes.NewReader(stream), limit)
		if _, err := r.Next(); err != io.ErrUnexpectedEOF {
			t.Fatalf("cut frame gave %v", err)
		}
		if most := 2*sent + readAhead + initialBuffer; len(r.buf) > most {
			t.Errorf("%d bytes received hold a buffer of %d, want at most %d", sent, len(r.buf), most)
		}
	}
}

func TestNext_ReleasesBuffer(t *testing.T) {
	stream := Append(nil, make([]byte, 1<<20))
	stream = Append(stream, []byte("x"))
	r := NewReader(iotest.OneByteReader(bytes.NewReader(stream)), 1<<20)
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.buf) > maxIdleBuffer {
		t.Errorf("buffer of %d bytes is kept, want at most %d", len(r.buf), maxIdleBuffer)
	}
}

func TestReady(t *testing.T) {
	stream := append(Append(Append(nil, []byte("one")), []byte("two")), 0, 0, 0)
	r := NewReader(bytes.NewReader(stream), 10)
	if r.Ready() {
		t.Error("ready before anything was read")
	}
	for _, want := range []bool{true, false} {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		if r.Ready() != want {
			t.Errorf("ready is %t, want %t", !want, want)
		}
	}
}

func TestBeginEnd(t *testing.T) {
	b, mark := Begin([]byte("before"))
	b = append(b, "payload"...)
	if size := End(b, mark); size != 7 {
		t.Errorf("size is %d, want 7", size)
	}
	if want := Append([]byte("before"), []byte("payload")); !bytes.Equal(b, want) {
		t.Errorf("frame is %q, want %q", b, want)
	}
}

func FuzzNext(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 'a', 0, 0, 0, 2, 'b', 'c'}, 1)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1}, 3)
	f.Fuzz(func(t *testing.T, stream []byte, step int) {
		r := NewReader(&randomChunks{data: stream, rnd: rand.New(rand.NewPCG(uint64(step), 0))}, 1<<16)
		var again []byte
		for {
			payload, err := r.Next()
			if err != nil {
				break
			}
			again = Append(again, payload)
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("frames %x are not the beginning of stream %x", again, stream)
		}
	})
}
