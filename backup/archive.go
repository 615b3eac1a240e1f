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
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Format is the version of the file format.
const Format = 1

// Names in a file.
const (
	LedgerPart   = "ledger"
	manifestName = "manifest.json"
	checksumName = "manifest.sha256"
)

// ErrDamaged is wrapped by every error about a file whose content is not what was
// written.
var ErrDamaged = errors.New("the backup is damaged")

// damaged returns an error that wraps [ErrDamaged], with a formatted description.
func damaged(format string, v ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, v...))
}

// Manifest describes the content of a file.
type Manifest struct {
	Format  int       `json:"format"`
	Version string    `json:"version"` // version of the program that wrote it
	Yard    string    `json:"yard"`
	Node    string    `json:"node"` // node that wrote it
	Members []string  `json:"members"`
	Started time.Time `json:"begun"`
	Ended   time.Time `json:"ended"`

	Index      uint64            `json:"index"` // of the ledger's last entry
	At         string            `json:"at"`    // the ledger's time
	Epoch      uint64            `json:"epoch"`
	LastEvent  uint64            `json:"last_event"`
	LastResult uint64            `json:"last_result"`
	LastDead   uint64            `json:"last_dead_letter"`
	Ledger     Part              `json:"ledger"` // its checksum is the ledger's hash
	Queues     []api.BackupQueue `json:"queues"`
	Crons      int               `json:"crons"`

	Streams []Stream `json:"streams"`
}

// Part describes a part of a file: the ledger, or the archive of a stream.
type Part struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Stream is the archive of a stream.
type Stream struct {
	Part
	Stream   string `json:"stream"`
	Identity string `json:"identity,omitempty"` // of a lane
	First    uint64 `json:"first"`
	Last     uint64 `json:"last"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Size returns the size of all parts in bytes.
func (m *Manifest) Size() int64 {
	n := m.Ledger.Size
	for i := range m.Streams {
		n += m.Streams[i].Size
	}
	return n
}

// Stream returns the archive of a stream, or nil.
func (m *Manifest) Stream(name string) *Stream { return findStream(m.Streams, name) }

// findStream returns the element of all with a stream's name, or nil.
func findStream(all []Stream, name string) *Stream {
	i := slices.IndexFunc(all, func(s Stream) bool { return s.Stream == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// checksum returns the SHA-256 of b in hex.
func checksum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// chunkSize is the size in bytes of one entry of the archive. It bounds the memory
// that writing needs.
const chunkSize = 1 << 20

// Writer writes a file. It is not safe for concurrent use.
type Writer struct {
	tar *tar.Writer
}

// NewWriter returns a writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{tar: tar.NewWriter(w)} }

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
	err := w.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: time.Now().Truncate(time.Second)})
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

// Write appends b to the part. It collects the data in a buffer and writes an entry of
// the archive whenever that holds chunkSize bytes; Close writes the rest. If an entry
// cannot be written, Write returns how much of b it had taken into the buffer.
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
	storedChecksum, err := io.ReadAll(io.LimitReader(f.tar, 256))
	if err != nil || f.name != checksumName {
		return nil, damaged("the checksum of its manifest is missing")
	}
	if strings.TrimSpace(string(storedChecksum)) != checksum(text) {
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
		if read := f.parts[p.Name]; read != p {
			return nil, damaged("%s has changed: %d bytes with checksum %.12s, want %d with %.12s", p.Name, read.Size, read.SHA256, p.Size, p.SHA256)
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
	if chunk := fmt.Sprintf("%s/%08d", p.name, p.chunks); p.archive.name != chunk {
		return damaged("entry %s instead of %s", p.archive.name, chunk)
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
