package backup

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"time"
)

// chunkSize is the size in bytes of one entry of the archive. It bounds the memory
// that writing needs.
const chunkSize = 1 << 20

// Writer writes a file. It is not safe for concurrent use.
type Writer struct {
	tar *tar.Writer
	now func() time.Time
}

// NewWriter returns a writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{tar: tar.NewWriter(w), now: time.Now} }

// Part begins a part. The caller must close it before it begins the next one.
func (w *Writer) Part(name string) *PartWriter {
	return &PartWriter{w: w, part: Part{Name: name}, hash: sha256.New()}
}

// Finish writes the manifest and completes the file.
func (w *Writer) Finish(m *Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	text = append(text, '\n')
	if err := w.entry(manifestName, text); err != nil {
		return err
	}
	if err := w.entry(checksumName, []byte(checksum(text)+"\n")); err != nil {
		return err
	}
	return w.tar.Close()
}

// entry writes one entry of the archive.
func (w *Writer) entry(name string, data []byte) error {
	err := w.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: w.now().Truncate(time.Second)})
	if err == nil {
		_, err = w.tar.Write(data)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// PartWriter writes a part.
type PartWriter struct {
	w      *Writer
	part   Part
	hash   hash.Hash
	buf    []byte // the next chunk
	chunks int    // written
}

// Write appends b to the part.
func (p *PartWriter) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), chunkSize-len(p.buf))
		p.buf = append(p.buf, rest[:n]...)
		rest = rest[n:]
		if len(p.buf) == chunkSize {
			if err := p.flush(); err != nil {
				return len(b) - len(rest), err
			}
		}
	}
	return len(b), nil
}

// flush writes the buffer as the part's next chunk.
func (p *PartWriter) flush() error {
	p.chunks++
	p.hash.Write(p.buf)
	p.part.Size += int64(len(p.buf))
	err := p.w.entry(fmt.Sprintf("%s/%08d", p.part.Name, p.chunks), p.buf)
	p.buf = p.buf[:0]
	return err
}

// Close completes the part and returns its description.
func (p *PartWriter) Close() (Part, error) {
	if len(p.buf) > 0 || p.chunks == 0 {
		if err := p.flush(); err != nil {
			return Part{}, err
		}
	}
	p.part.SHA256 = hex.EncodeToString(p.hash.Sum(nil))
	return p.part, nil
}
