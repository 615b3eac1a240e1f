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

const maxManifestBytes = 64 << 20 // bytes

// eachPart reads a file and calls fn with the name and the content of each part, in
// the file's order; fn need not read all of it. At the end it compares the size and
// checksum of all parts with the manifest, which it returns.
func eachPart(r io.Reader, fn func(name string, part io.Reader) error) (*Manifest, error) {
	f := &archiveReader{tar: tar.NewReader(r), parts: map[string]Part{}}
	if err := f.next(); err != nil {
		return nil, err
	}
	for f.name != manifestName {
		part := &partReader{archive: f, name: f.partName(), hash: sha256.New()}
		if part.name == "" {
			return nil, damaged("unexpected entry %q", f.name)
		}
		if _, seen := f.parts[part.name]; seen {
			return nil, damaged("part %s occurs twice", part.name)
		}
		if err := fn(part.name, part); err != nil {
			return nil, err
		}
		if _, err := io.Copy(io.Discard, part); err != nil {
			return nil, err
		}
		f.parts[part.name] = Part{part.name, part.size, hex.EncodeToString(part.hash.Sum(nil))}
	}
	return f.manifest()
}

// archiveReader reads the entries of the archive.
type archiveReader struct {
	tar   *tar.Reader
	name  string          // of the current entry
	parts map[string]Part // that were read completely, by name
}

// next goes to the next entry. The end of the file is an error, because it is only
// called where an entry must follow.
func (f *archiveReader) next() error {
	h, err := f.tar.Next()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("it ends before its manifest: the file is truncated, or writing it was interrupted")
	}
	if err != nil {
		return damaged("it is not a tar archive: %v", err)
	}
	f.name = h.Name
	return nil
}

// partName returns the name of the part that the current entry, "<part>/<chunk>",
// belongs to, "" if it belongs to none.
func (f *archiveReader) partName() string {
	name, chunk, ok := strings.Cut(f.name, "/")
	if !ok || len(chunk) != 8 {
		return ""
	}
	return name
}

// manifest reads the manifest and its checksum, and compares the parts with it.
func (f *archiveReader) manifest() (*Manifest, error) {
	text, err := io.ReadAll(io.LimitReader(f.tar, maxManifestBytes))
	if err != nil {
		return nil, damaged("its manifest is truncated")
	}
	if err := f.next(); err != nil {
		return nil, err
	}
	given, err := io.ReadAll(io.LimitReader(f.tar, 256))
	if err != nil || f.name != checksumName {
		return nil, damaged("the checksum of its manifest is missing")
	}
	if strings.TrimSpace(string(given)) != checksum(text) {
		return nil, damaged("its manifest does not match its checksum")
	}
	m := new(Manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, damaged("malformed manifest: %v", err)
	}
	if m.Format != Format {
		return nil, fmt.Errorf("the backup has format %d, this program reads %d: use the release that made it, %s", m.Format, Format, m.Version)
	}
	for _, p := range m.allParts() {
		if got := f.parts[p.Name]; got != p {
			return nil, damaged("%s has changed: %d bytes with checksum %.12s, want %d with %.12s", p.Name, got.Size, got.SHA256, p.Size, p.SHA256)
		}
	}
	return m, nil
}

// allParts returns the parts that the manifest names. The file may have others, of
// streams whose copying was interrupted.
func (m *Manifest) allParts() []Part {
	parts := []Part{m.Ledger}
	for i := range m.Streams {
		parts = append(parts, m.Streams[i].Part)
	}
	return parts
}

// partReader reads the chunks of a part as one stream.
type partReader struct {
	archive *archiveReader
	name    string
	chunks  int       // begun so far
	size    int64     // bytes read
	hash    hash.Hash // of the bytes read
	ended   bool
}

// Read reads from the current chunk. At its end, it goes to the archive's next
// entry, which is the part's next chunk or ends the part.
func (p *partReader) Read(b []byte) (int, error) {
	for !p.ended {
		if p.chunks == 0 {
			if err := p.begin(); err != nil {
				return 0, err
			}
		}
		n, err := p.archive.tar.Read(b)
		p.size += int64(n)
		p.hash.Write(b[:n])
		switch {
		case n > 0:
			return n, nil
		case err == nil:
			continue
		case !errors.Is(err, io.EOF):
			return 0, damaged("%s is truncated", p.archive.name)
		}
		if err := p.archive.next(); err != nil {
			return 0, err
		}
		if p.archive.partName() != p.name {
			p.ended = true
		} else if err := p.begin(); err != nil {
			return 0, err
		}
	}
	return 0, io.EOF
}

// begin checks that the current entry is the part's next chunk.
func (p *partReader) begin() error {
	p.chunks++
	if want := fmt.Sprintf("%s/%08d", p.name, p.chunks); p.archive.name != want {
		return damaged("entry %s instead of %s", p.archive.name, want)
	}
	return nil
}

// Parts calls fn with the parts that the manifest names, in the file's order.
// Their content is verified only after the last one has been read.
func Parts(r io.Reader, m *Manifest, fn func(name string, part io.Reader) error) error {
	named := map[string]bool{}
	for _, p := range m.allParts() {
		named[p.Name] = true
	}
	_, err := eachPart(r, func(name string, part io.Reader) error {
		if !named[name] {
			return nil
		}
		return fn(name, part)
	})
	return err
}
