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
	projection Projection      // nil: none
	onFatal    func(error)     // ends the process when an entry cannot be applied
	restoreErr error           // of the last Restore; Raft does not return it
	snapshots  snapshotTrigger // guarded by mu, except for its channel

	changes *ledger.ChangeList // nil: they are not recorded
	saved   func(index uint64) // see [Config]; nil: nothing has to be saved
}

// Projection is made of the entries of the log on every member, beside the ledger, and is in
// snapshots with it, so that it lacks no entry that the ledger has. It is not compared among members.
// Its methods except the function that Snapshot returns are called under the ledger's lock, and must
// be short.
type Projection interface {
	// Applied is called after each entry with the ledger, which has the entry's
	// [ledger.Ledger.Transitions].
	Applied(l *ledger.Ledger)
	// Snapshot returns a function that returns the present state as bytes. That one is called
	// later, while further entries are applied.
	Snapshot() (encode func() []byte)
	// Restored is called when a ledger of a snapshot has replaced that of a member. state is what
	// was written with it, empty if it was written without a projection.
	Restored(l *ledger.Ledger, state []byte)
}

func newFSM(snapshotBytes int64, onFatal func(error), projection Projection) *fsm {
	f := &fsm{Replica: newReplica(), projection: projection, onFatal: onFatal, snapshots: newSnapshotTrigger(snapshotBytes)}
	if projection != nil {
		f.ledger.RecordTransitions()
	}
	return f
}

// recordChanges sets what gets the changes of the ledger. It must be called before the first entry is
// applied.
func (f *fsm) recordChanges(changes *ledger.ChangeList, saved func(index uint64)) {
	f.changes, f.saved = changes, saved
	if changes != nil {
		f.ledger.RecordChanges(changes)
	}
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
	results := f.ledger.Apply(ledger.Stamp{Index: entry.Index, Term: entry.Term, At: p.At, Offsets: p.Offsets, Epoch: p.Epoch}, p.Commands)
	if f.projection != nil {
		f.projection.Applied(f.ledger)
	}
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
	s := snapshot{fsm: f, ledger: f.copyLedger()}
	if f.projection != nil {
		s.projection = f.projection.Snapshot()
	}
	return s, nil
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
	l, state, err := readSnapshot(counted)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger = l
	if f.projection != nil {
		l.RecordTransitions()
		f.projection.Restored(l, state)
	}
	if f.changes != nil {
		l.RecordChanges(f.changes)
	}
	f.snapshots.reset()
	f.snapshots.setLimit(counted.n)
	f.advance(l.Index())
	return nil
}

// snapshot is a copy of the ledger that is being written to disk.
type snapshot struct {
	fsm        *fsm
	ledger     *ledger.Ledger
	projection func() []byte // nil: none
}

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if s.fsm.saved != nil {
		s.fsm.saved(s.ledger.Index())
	}
	counted := &countingWriter{w: sink}
	var state []byte
	if s.projection != nil {
		state = s.projection()
	}
	if err := writeSnapshot(counted, s.ledger, state); err != nil {
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

// maxProjection bounds the state of a projection that is read.
const maxProjection = 64 << 20

// writeSnapshot writes a snapshot: snapshotMagic, the encoded ledger and the state of the projection
// in chunks, and an empty chunk as the end.
func writeSnapshot(w io.Writer, l *ledger.Ledger, projection []byte) error {
	if _, err := io.WriteString(w, snapshotMagic); err != nil {
		return err
	}
	chunks := bufio.NewWriterSize(chunkWriter{w}, snapshotChunk)
	if err := l.Encode(chunks); err != nil {
		return err
	}
	if _, err := chunks.Write(projection); err != nil {
		return err
	}
	if err := chunks.Flush(); err != nil {
		return err
	}
	_, err := w.Write(make([]byte, 8)) // the empty chunk: length 0, checksum 0
	return err
}

// readSnapshot reads what writeSnapshot wrote, and verifies all of it.
func readSnapshot(r io.Reader) (l *ledger.Ledger, projection []byte, err error) {
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(r, magic); err != nil {
		return nil, nil, err
	}
	if string(magic) != snapshotMagic {
		return nil, nil, fmt.Errorf("snapshot begins with %q, this release reads %q", magic, snapshotMagic)
	}
	chunks := bufio.NewReaderSize(&chunkReader{r: r}, snapshotChunk) // from which Decode reads no more than the ledger
	if l, err = ledger.Decode(chunks); err != nil {
		return nil, nil, err
	}
	if projection, err = io.ReadAll(io.LimitReader(chunks, maxProjection)); err != nil {
		return nil, nil, err
	}
	if _, err := io.Copy(io.Discard, chunks); err != nil { // the final chunk must be there
		return nil, nil, err
	}
	return l, projection, nil
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
