package consensus

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"yardmaster/ledger"
)

// fsm is the bridge between raft, which calls it from one goroutine, and the
// ledger, which everybody reads.
type fsm struct {
	log   *slog.Logger
	limit int64               // bytes of entries after which a snapshot is due
	halt  func(error)         // ends the process: an entry cannot be applied
	grown chan struct{}       // holds one notice that it is
	prove chan *ledger.Ledger // holds the newest copy that a hash is to be made of

	mu      sync.RWMutex
	ledger  *ledger.Ledger
	index   uint64        // last applied entry
	changed chan struct{} // closed at the next entry; nil: nobody waits
	bytes   int64         // applied since the last snapshot
}

func newFSM(limit int64, halt func(error), log *slog.Logger) *fsm {
	return &fsm{ledger: ledger.New(), limit: limit, halt: halt, grown: make(chan struct{}, 1), prove: make(chan *ledger.Ledger, 1), log: log}
}

// Apply applies one committed entry; its answer is a [*Commit]. An entry that
// cannot be read stops the process: going on without it would make this
// member's ledger another one than its peers'.
func (f *fsm) Apply(entry *raft.Log) any {
	p, err := decodeEntry(entry.Data)
	if err != nil {
		f.log.Error("committed log entry cannot be read: stopping this node", "index", entry.Index, "term", entry.Term, "error", err)
		err = fmt.Errorf("committed entry %d of term %d: %w", entry.Index, entry.Term, err)
		f.halt(err)
		panic(err) // nothing may be applied behind it
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	results := f.ledger.Apply(ledger.Stamp{Index: entry.Index, Term: entry.Term, At: p.At, Epoch: p.Epoch}, p.Commands)
	f.advance(entry.Index)
	if slices.ContainsFunc(p.Commands, func(c ledger.Command) bool { return c.Kind() == ledger.KindProve }) {
		f.offer(f.ledger.Copy())
	}
	if f.bytes += int64(len(entry.Data)); f.bytes >= f.limit {
		select {
		case f.grown <- struct{}{}:
		default:
		}
	}
	return &Commit{Index: entry.Index, Term: entry.Term, Results: results}
}

// offer leaves a copy for whoever makes hashes, in place of one that he has not
// taken: who replays a log need not prove what is long past.
func (f *fsm) offer(l *ledger.Ledger) {
	select {
	case <-f.prove:
	default:
	}
	f.prove <- l // only this goroutine sends
}

// Snapshot copies the ledger, which takes no time; writing it out goes on
// beside Apply.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes = 0
	return snapshot{f.ledger.Copy()}, nil
}

// Restore replaces the ledger by a snapshot's.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	l, err := readSnapshot(r)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger, f.bytes = l, 0
	f.advance(l.Index())
	return nil
}

// advance tells waiters about an applied entry. Callers hold mu.
func (f *fsm) advance(index uint64) {
	f.index = index
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// applied gives the last applied index and a channel that closes with the next.
func (f *fsm) applied() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return f.index, f.changed
}

// snapshot is a copy of the ledger on its way to disk.
type snapshot struct{ ledger *ledger.Ledger }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeSnapshot(sink, s.ledger); err != nil {
		return errors.Join(fmt.Errorf("write snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

func (s snapshot) Release() {}

// A snapshot is a magic text and then chunks: length, CRC-32C, bytes. A chunk
// of length 0 ends it, so that a torn file is never taken for a whole one.
const (
	snapshotMagic = "yardmaster ledger 1\n"
	snapshotChunk = 256 << 10
)

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
	_, err := w.Write(make([]byte, 8))
	return err
}

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
	if _, err := io.Copy(io.Discard, chunks); err != nil { // the end must be there
		return nil, err
	}
	return l, nil
}

type chunkWriter struct{ w io.Writer }

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

// chunkReader gives out a chunk's bytes only after it has checked them.
type chunkReader struct {
	r    io.Reader
	buf  [snapshotChunk]byte
	rest []byte
	end  bool
}

func (c *chunkReader) Read(b []byte) (int, error) {
	if len(c.rest) == 0 && !c.end {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	if c.end {
		return 0, io.EOF
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *chunkReader) next() error {
	var head [8]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return fmt.Errorf("snapshot is cut short: %w", noEOF(err))
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > snapshotChunk {
		return fmt.Errorf("snapshot chunk of %d bytes; at most %d", size, snapshotChunk)
	}
	c.rest, c.end = c.buf[:size], size == 0
	if _, err := io.ReadFull(c.r, c.rest); err != nil {
		return fmt.Errorf("snapshot is cut short: %w", noEOF(err))
	}
	if crc32.Checksum(c.rest, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return errors.New("snapshot chunk does not match its checksum")
	}
	return nil
}

// noEOF keeps a decoder from taking a missing end for the end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
