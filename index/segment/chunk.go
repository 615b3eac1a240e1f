package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// ErrDamaged is returned for a segment that does not have the content that was written.
var ErrDamaged = errors.New("the segment is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunk is where a part of a segment is, without its checksum.
type chunk struct{ offset, size int64 }

// chunkWriter writes chunks with their checksums.
type chunkWriter struct {
	w      io.Writer
	offset int64
	err    error // of the first write that failed
}

func (w *chunkWriter) write(data []byte) chunk {
	at := chunk{w.offset, int64(len(data))}
	w.raw(data)
	w.raw(binary.LittleEndian.AppendUint32(nil, crc32.Checksum(data, castagnoli)))
	return at
}

func (w *chunkWriter) raw(data []byte) {
	if w.err != nil {
		return
	}
	_, w.err = w.w.Write(data)
	w.offset += int64(len(data))
}

// readChunk returns the content of a chunk of r. It uses buffer if that is large enough.
func readChunk(r io.ReaderAt, at chunk, buffer []byte) ([]byte, error) {
	size := int(at.size) + 4
	if cap(buffer) < size {
		buffer = make([]byte, size)
	}
	buffer = buffer[:size]
	if n, err := r.ReadAt(buffer, at.offset); n < size {
		if errors.Is(err, io.EOF) {
			err = ErrDamaged
		}
		return nil, fmt.Errorf("read %d bytes at %d: %w", size, at.offset, err)
	}
	data, sum := buffer[:at.size], binary.LittleEndian.Uint32(buffer[at.size:])
	if crc32.Checksum(data, castagnoli) != sum {
		return nil, fmt.Errorf("checksum of %d bytes at %d: %w", at.size, at.offset, ErrDamaged)
	}
	return data, nil
}

// decoder reads values from bytes. After an error it returns zero values.
type decoder struct {
	data []byte
	err  error
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.data)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.data = d.data[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.data)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.data = d.data[n:]
	return v
}

// bytes returns the next n bytes, which are not copied.
func (d *decoder) bytes(n uint64) []byte {
	if n > uint64(len(d.data)) {
		d.fail()
		return nil
	}
	b := d.data[:n:n]
	d.data = d.data[n:]
	return b
}

func (d *decoder) text() string { return string(d.bytes(d.uvarint())) }

func (d *decoder) fail() {
	if d.err == nil {
		d.err, d.data = ErrDamaged, nil
	}
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}
