package backup

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
)

const maxManifest = 64 << 20 // bytes

// each reads a file from its beginning and gives its parts in their order: fn
// reads one as far as it likes. It returns the manifest, against which all
// parts have been held.
func each(r io.Reader, fn func(name string, part io.Reader) error) (*Manifest, error) {
	f := &reader{tar: tar.NewReader(r), sums: map[string]Part{}}
	if err := f.next(); err != nil {
		return nil, err
	}
	for f.name != manifestName {
		part := &partReader{f: f, name: f.part(), sum: sha256.New()}
		if part.name == "" {
			return nil, damaged("it holds %q, which no backup does", f.name)
		}
		if _, twice := f.sums[part.name]; twice {
			return nil, damaged("it holds %s twice", part.name)
		}
		if err := fn(part.name, part); err != nil {
			return nil, err
		}
		if _, err := io.Copy(io.Discard, part); err != nil {
			return nil, err
		}
		f.sums[part.name] = Part{part.name, part.size, hex.EncodeToString(part.sum.Sum(nil))}
	}
	return f.manifest()
}

// reader stands at one entry of the archive.
type reader struct {
	tar  *tar.Reader
	name string
	sums map[string]Part
}

func (f *reader) next() error {
	h, err := f.tar.Next()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("it ends before its manifest: it was cut off, or was never finished")
	}
	if err != nil {
		return damaged("it is no archive: %v", err)
	}
	f.name = h.Name
	return nil
}

// part is the part that the entry is a piece of; "" if it is none.
func (f *reader) part() string {
	name, piece, ok := strings.Cut(f.name, "/")
	if !ok || len(piece) != 8 {
		return ""
	}
	return name
}

func (f *reader) manifest() (*Manifest, error) {
	text, err := io.ReadAll(io.LimitReader(f.tar, maxManifest))
	if err != nil {
		return nil, damaged("its manifest is cut off")
	}
	if err := f.next(); err != nil {
		return nil, err
	}
	given, err := io.ReadAll(io.LimitReader(f.tar, 256))
	if err != nil || f.name != sumName {
		return nil, damaged("its manifest has no sum")
	}
	if strings.TrimSpace(string(given)) != sum(text) {
		return nil, damaged("its manifest does not match its sum")
	}
	m := new(Manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, damaged("its manifest cannot be read: %v", err)
	}
	if m.Format != Format {
		return nil, fmt.Errorf("the backup has format %d, this program reads %d: use the release that made it, %s", m.Format, Format, m.Version)
	}
	for _, p := range m.parts() {
		if got := f.sums[p.Name]; got != p {
			return nil, damaged("%s is not what was written: %d bytes of sum %.12s, not %d of %.12s", p.Name, got.Size, got.SHA256, p.Size, p.SHA256)
		}
	}
	return m, nil
}

func (m *Manifest) parts() []Part {
	parts := []Part{m.Ledger}
	for i := range m.Streams {
		parts = append(parts, m.Streams[i].Part)
	}
	return parts
}

// partReader joins the pieces of a part.
type partReader struct {
	f      *reader
	name   string
	pieces int
	size   int64
	sum    hash.Hash
	ended  bool
}

func (p *partReader) Read(b []byte) (int, error) {
	for !p.ended {
		if p.pieces == 0 {
			if err := p.begin(); err != nil {
				return 0, err
			}
		}
		n, err := p.f.tar.Read(b)
		p.size += int64(n)
		p.sum.Write(b[:n])
		switch {
		case n > 0:
			return n, nil
		case err == nil:
			continue
		case !errors.Is(err, io.EOF):
			return 0, damaged("%s is cut off", p.f.name)
		}
		if err := p.f.next(); err != nil {
			return 0, err
		}
		if p.f.part() != p.name {
			p.ended = true
		} else if err := p.begin(); err != nil {
			return 0, err
		}
	}
	return 0, io.EOF
}

func (p *partReader) begin() error {
	p.pieces++
	if want := fmt.Sprintf("%s/%08d", p.name, p.pieces); p.f.name != want {
		return damaged("%s comes where %s should", p.f.name, want)
	}
	return nil
}

// Parts gives the parts that a manifest counts, in the file's order. What they
// hold is checked when all have been read.
func Parts(r io.Reader, m *Manifest, fn func(name string, part io.Reader) error) error {
	counts := map[string]bool{}
	for _, p := range m.parts() {
		counts[p.Name] = true
	}
	_, err := each(r, func(name string, part io.Reader) error {
		if !counts[name] {
			return nil
		}
		return fn(name, part)
	})
	return err
}
