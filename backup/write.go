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

// pieceSize is what lies in one entry of the archive, in bytes: it bounds the
// memory that writing takes.
const pieceSize = 1 << 20

// Writer writes a file. It is not safe for concurrent use.
type Writer struct {
	tar *tar.Writer
	now func() time.Time
}

// NewWriter writes to w.
func NewWriter(w io.Writer) *Writer { return &Writer{tar: tar.NewWriter(w), now: time.Now} }

// Part begins a part. The caller writes it and closes it before the next.
func (w *Writer) Part(name string) *PartWriter {
	return &PartWriter{w: w, part: Part{Name: name}, sum: sha256.New()}
}

// Finish writes the manifest and ends the file.
func (w *Writer) Finish(m *Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	text = append(text, '\n')
	if err := w.entry(manifestName, text); err != nil {
		return err
	}
	if err := w.entry(sumName, []byte(sum(text)+"\n")); err != nil {
		return err
	}
	return w.tar.Close()
}

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

// PartWriter writes one part.
type PartWriter struct {
	w      *Writer
	part   Part
	sum    hash.Hash
	buf    []byte
	pieces int
}

// Write takes more of the part.
func (p *PartWriter) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		n := min(len(rest), pieceSize-len(p.buf))
		p.buf = append(p.buf, rest[:n]...)
		rest = rest[n:]
		if len(p.buf) == pieceSize {
			if err := p.flush(); err != nil {
				return len(b) - len(rest), err
			}
		}
	}
	return len(b), nil
}

func (p *PartWriter) flush() error {
	p.pieces++
	p.sum.Write(p.buf)
	p.part.Size += int64(len(p.buf))
	err := p.w.entry(fmt.Sprintf("%s/%08d", p.part.Name, p.pieces), p.buf)
	p.buf = p.buf[:0]
	return err
}

// Close ends the part and says what was written.
func (p *PartWriter) Close() (Part, error) {
	if len(p.buf) > 0 || p.pieces == 0 {
		if err := p.flush(); err != nil {
			return Part{}, err
		}
	}
	p.part.SHA256 = hex.EncodeToString(p.sum.Sum(nil))
	return p.part, nil
}
