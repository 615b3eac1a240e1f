package consensus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// fsm connects Raft, which calls it from one goroutine, with the replica.
type fsm struct {
	*Replica
	onFatal    func(error)     // ends the process when an entry cannot be applied
	restoreErr error           // of the last Restore; Raft does not return it
	snapshots  snapshotTrigger // guarded by mu, except for its channel
}

func newFSM(snapshotBytes int64, onFatal func(error)) *fsm {
	return &fsm{Replica: newReplica(), onFatal: onFatal, snapshots: newSnapshotTrigger(snapshotBytes)}
}

// Apply applies one committed entry and returns a [*ledger.Commit]. An entry that
// cannot be decoded stops the process: without it, this member's ledger would
// differ from those of the other members. It panics only if onFatal returns.
func (f *fsm) Apply(entry *raft.Log) any {
	p, err := decodeEntry(entry.Data)
	if err != nil {
		err = fmt.Errorf("committed entry %d of term %d: %w", entry.Index, entry.Term, err)
		f.onFatal(err)
		panic(err) // no later entry may be applied
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	results := f.ledger.Apply(ledger.Stamp{Index: entry.Index, Term: entry.Term, At: p.At, Epoch: p.Epoch}, p.Commands)
	f.advance(entry.Index)
	if slices.ContainsFunc(p.Commands, func(c ledger.Command) bool { return c.Kind() == ledger.KindCheckConsistency }) {
		f.offerCheck(f.copyLedger())
	}
	f.snapshots.applied(len(entry.Data))
	return &ledger.Commit{Index: entry.Index, Results: results}
}

// Snapshot returns a copy of the ledger, which takes no time. Raft writes it
// out while Apply continues.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshots.reset()
	return snapshot{f, f.copyLedger()}, nil
}

// setSnapshotSize sets the size of the newest snapshot, on which depends when the next
// one is due.
func (f *fsm) setSnapshotSize(size int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshots.setLimit(size)
}

// trailingEntries returns how many of the last entries have about this size together, in
// bytes.
func (f *fsm) trailingEntries(bytes int64) uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.snapshots.entriesIn(bytes)
}

// Restore replaces the ledger by that of a snapshot.
func (f *fsm) Restore(r io.ReadCloser) (err error) {
	defer func() { f.restoreErr = errors.Join(err, r.Close()) }()
	counted := &countingReader{r: r}
	l, err := readSnapshot(counted)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger = l
	f.snapshots.reset()
	f.snapshots.setLimit(counted.n)
	f.advance(l.Index())
	return nil
}

// snapshot is a copy of the ledger that is being written to disk.
type snapshot struct {
	fsm    *fsm
	ledger *ledger.Ledger
}

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	counted := &countingWriter{w: sink}
	if err := writeSnapshot(counted, s.ledger); err != nil {
		return errors.Join(fmt.Errorf("write snapshot: %w", err), sink.Cancel())
	}
	s.fsm.setSnapshotSize(counted.n)
	return sink.Close()
}

func (s snapshot) Release() {}

// A snapshot is a magic text followed by chunks: length, CRC-32C, bytes. A
// chunk of length 0 ends it, so that a truncated file is detected.
const (
	snapshotMagic = "yardmaster ledger 1\n"
	snapshotChunk = 256 << 10
)

// writeSnapshot writes a snapshot of the ledger: snapshotMagic, the encoded ledger in
// chunks, and an empty chunk as the end.
func writeSnapshot(w io.Writer, l *ledger.Ledger) error {
	if _, err := io.WriteString(w, snapshotMagic); err != nil {
		return err
	}
	chunks := bufio.NewWriterSize(chunkWriter{w}, snapshotChunk)
	if err := l.Encode(chunks); err != nil {
		return err
	}
	if err := chunks.Flush(); err != nil {
		return err
	}
	_, err := w.Write(make([]byte, 8)) // the empty chunk: length 0, checksum 0
	return err
}

// readSnapshot reads what writeSnapshot wrote, and verifies all of it.
func readSnapshot(r io.Reader) (*ledger.Ledger, error) {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil {
		return nil, err
	}
	if string(magic) != snapshotMagic {
		return nil, fmt.Errorf("snapshot begins with %q, this release reads %q", magic, snapshotMagic)
	}
	chunks := &chunkReader{r: r}
	l, err := ledger.Decode(chunks)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, chunks); err != nil { // the final chunk must be there
		return nil, err
	}
	return l, nil
}

// countingWriter counts the bytes that are written to w.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// countingReader counts the bytes that are read from r.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// chunkWriter writes each Write as one chunk, or as several if it is too long for one.
type chunkWriter struct{ w io.Writer }

// Write writes b in chunks of at most snapshotChunk bytes, each after its header.
func (c chunkWriter) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		part := rest[:min(len(rest), snapshotChunk)]
		var head [8]byte
		binary.BigEndian.PutUint32(head[:], uint32(len(part)))
		binary.BigEndian.PutUint32(head[4:], crc32.Checksum(part, castagnoli))
		if _, err := c.w.Write(head[:]); err != nil {
			return len(b) - len(rest), err
		}
		if _, err := c.w.Write(part); err != nil {
			return len(b) - len(rest), err
		}
		rest = rest[len(part):]
	}
	return len(b), nil
}

// chunkReader verifies each chunk before it returns the chunk's bytes.
type chunkReader struct {
	r    io.Reader
	buf  [snapshotChunk]byte
	rest []byte
	done bool
}

// Read reads the verified bytes of the current chunk, or of the next one if none remain.
// It returns [io.EOF] only after the empty chunk that ends a snapshot.
func (c *chunkReader) Read(b []byte) (int, error) {
	if len(c.rest) == 0 && !c.done {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	if c.done {
		return 0, io.EOF
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next reads and verifies the next chunk. It sets done after the last one, which is empty.
func (c *chunkReader) next() error {
	var head [8]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return fmt.Errorf("snapshot is cut short: %w", unexpectedEOF(err))
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > snapshotChunk {
		return fmt.Errorf("snapshot chunk of %d bytes; at most %d", size, snapshotChunk)
	}
	c.rest, c.done = c.buf[:size], size == 0
	if _, err := io.ReadFull(c.r, c.rest); err != nil {
		return fmt.Errorf("snapshot is cut short: %w", unexpectedEOF(err))
	}
	if crc32.Checksum(c.rest, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return errors.New("snapshot chunk does not match its checksum")
	}
	return nil
}

// unexpectedEOF turns io.EOF into io.ErrUnexpectedEOF, so that a truncated
// snapshot is not taken for a complete one.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
