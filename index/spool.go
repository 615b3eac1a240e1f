package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Records of a spool. Each begins with its kind.
const (
	documentRecord = 'd' // the document of a job, which replaces an earlier one
	deleteRecord   = 'x' // the place of a document that is deleted
	markRecord     = 'm' // how far changes are in the spool
	seenRecord     = 's' // the last entry that documents may have effects of, if that is all that is known
)

// spool is a file to which changes of the index are appended in blocks: the size of the records in
// it, their CRC-32C, and the records.
type spool struct {
	file             *os.File
	buffer           []byte // the next block: its head and the records
	written, durable int64  // bytes; durable ones are on the disk
}

const blockHead = 8

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func spoolName(dir string, generation uint64) string {
	return filepath.Join(dir, fmt.Sprint("spool-", generation))
}

// createSpool creates the spool of a generation, without what it may have had.
func createSpool(dir string, generation uint64) (*spool, error) {
	file, err := os.OpenFile(spoolName(dir, generation), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &spool{file: file, buffer: make([]byte, blockHead)}, nil
}

func (s *spool) document(d *job.Document) {
	s.record(documentRecord, func(b []byte) []byte { return segment.AppendDocument(b, d) })
}

func (s *spool) delete(at ledger.JobPlace) {
	s.record(deleteRecord, func(b []byte) []byte {
		return binary.LittleEndian.AppendUint64(append(b, at.ID[:]...), uint64(at.Accepted))
	})
}

// mark adds how far changes were read. seen is the index of the last entry that they may have
// effects of.
func (s *spool) mark(m ledger.ChangeMark, seen uint64) {
	s.record(markRecord, func(b []byte) []byte {
		for _, n := range []uint64{m.Index, m.Event, uint64(m.Time.UnixNano()), m.FenceBase, seen} {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
		return b
	})
}

// seen adds the index of the last entry that the documents may have effects of.
func (s *spool) seen(index uint64) {
	s.record(seenRecord, func(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, index) })
}

// record adds a record: its kind, its size and what content appends.
func (s *spool) record(kind byte, content func([]byte) []byte) {
	s.buffer = append(s.buffer, kind, 0, 0, 0, 0)
	start := len(s.buffer)
	s.buffer = content(s.buffer)
	binary.LittleEndian.PutUint32(s.buffer[start-4:], uint32(len(s.buffer)-start))
}

// flush writes the records that were added as a block.
func (s *spool) flush() error {
	records := s.buffer[blockHead:]
	if len(records) == 0 {
		return nil
	}
	binary.LittleEndian.PutUint32(s.buffer, uint32(len(records)))
	binary.LittleEndian.PutUint32(s.buffer[4:], crc32.Checksum(records, castagnoli))
	_, err := s.file.Write(s.buffer)
	s.written += int64(len(s.buffer))
	s.buffer = s.buffer[:blockHead]
	return err
}

// sync makes what was written durable.
func (s *spool) sync() error {
	if s.durable == s.written {
		return nil
	}
	err := s.file.Sync()
	if err == nil {
		s.durable = s.written
	}
	return err
}

// spoolReader gets the records of a spool.
type spoolReader struct {
	document func(*job.Document)
	delete   func(ledger.JobPlace)
	mark     func(ledger.ChangeMark)
	seen     func(index uint64) // also after each mark
}

// errTorn is returned for a spool that ends with a block that was not written completely, as after a
// power loss, or that is damaged.
var errTorn = errors.New("a block of the spool is incomplete or damaged")

// read reads a spool up to the first block that is not complete, and returns the size of what it
// has read.
func (r *spoolReader) read(path string) (size int64, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for rest := data; len(rest) > 0; {
		if len(rest) < blockHead {
			return size, errTorn
		}
		n := int64(binary.LittleEndian.Uint32(rest))
		sum := binary.LittleEndian.Uint32(rest[4:])
		if n > int64(len(rest)-blockHead) || crc32.Checksum(rest[blockHead:blockHead+n], castagnoli) != sum {
			return size, errTorn
		}
		if err := r.block(rest[blockHead : blockHead+n]); err != nil {
			return size, fmt.Errorf("%w: %w", errTorn, err)
		}
		rest = rest[blockHead+n:]
		size += blockHead + n
	}
	return size, nil
}

func (r *spoolReader) block(data []byte) error {
	for len(data) > 0 {
		if len(data) < 5 {
			return io.ErrUnexpectedEOF
		}
		kind, n := data[0], int(binary.LittleEndian.Uint32(data[1:]))
		if data = data[5:]; n > len(data) {
			return io.ErrUnexpectedEOF
		}
		content := data[:n]
		data = data[n:]
		switch {
		case kind == documentRecord:
			d, err := segment.ParseDocument(content)
			if err != nil {
				return err
			}
			r.document(d)
		case kind == deleteRecord && n == 24:
			r.delete(ledger.JobPlace{ID: job.ID(content[:16]), Accepted: int64(binary.LittleEndian.Uint64(content[16:]))})
		case kind == markRecord && n == 40:
			field := func(i int) uint64 { return binary.LittleEndian.Uint64(content[i*8:]) }
			r.mark(ledger.ChangeMark{Index: field(0), Event: field(1), Time: time.Unix(0, int64(field(2))).UTC(), FenceBase: field(3)})
			r.seen(field(4))
		case kind == seenRecord && n == 8:
			r.seen(binary.LittleEndian.Uint64(content))
		default:
			return fmt.Errorf("record %q of %d bytes", kind, n)
		}
	}
	return nil
}
