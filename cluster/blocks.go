package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/highwayhash"
)

// JetStream keeps a stream in files <n>.blk of records behind each other. A
// record is, little-endian: its length in 4 bytes, whose highest bit says that
// there are headers; its sequence in 8; its time in 8; the length of its subject
// in 2; the subject; with headers, their length in 4 and they themselves; the
// data; and 8 bytes of HighwayHash over all but the lengths. The hash is keyed by
// the stream's name and the file's number. The server itself looks at a hash only
// when it loads a file that it does not have in memory.
const (
	recordHead   = 22
	recordHash   = 8
	recordMin    = recordHead + recordHash
	recordMost   = 32 << 20
	withHeaders  = 1 << 31
	wasErased    = 1 << 63 // in the sequence: the message was removed and overwritten, or never was
	isTombstone  = 1 << 62 // in the sequence: a note that another message was removed
	firstLook    = 64 << 10
	searchBeyond = 1 << 40 // by how much a sequence may follow on the one before
)

// block is a file of a stream on this node's disk.
type block struct {
	path   string
	number uint32
}

// blocksOf lists a stream's files, oldest first.
func blocksOf(dir string) ([]block, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []block
	for _, e := range entries {
		name, is := strings.CutSuffix(e.Name(), ".blk")
		if n, err := strconv.ParseUint(name, 10, 32); is && err == nil {
			all = append(all, block{filepath.Join(dir, e.Name()), uint32(n)})
		}
	}
	slices.SortFunc(all, func(a, b block) int { return int(a.number) - int(b.number) })
	return all, nil
}

// recordReader reads records and checks their hashes.
type recordReader struct {
	own, common hash.Hash64 // keyed as the file says, and as all copies of the stream
	sum         [recordHash]byte
}

func newRecordReader(stream string, number uint32) (*recordReader, error) {
	own, common := sha256.Sum256(fmt.Appendf(nil, "%s-%d", stream, number)), sha256.Sum256([]byte(stream))
	ownHash, err := highwayhash.New64(own[:])
	if err != nil {
		return nil, err
	}
	commonHash, err := highwayhash.New64(common[:])
	return &recordReader{own: ownHash, common: commonHash}, err
}

// next reads the record that text begins with. size is what it takes, 0 if there
// is none that is whole. sum is the same for the same message in every copy of
// the stream.
func (r *recordReader) next(text []byte) (seq, sum uint64, size int) {
	if len(text) < recordMin {
		return 0, 0, 0
	}
	length := binary.LittleEndian.Uint32(text)
	headers := length&withHeaders != 0
	size = int(length &^ withHeaders)
	subject := int(binary.LittleEndian.Uint16(text[20:]))
	lengths := subject
	if headers {
		lengths += 4
	}
	if size < recordMin || size > recordMost || size > len(text) || lengths > size-recordMin {
		return 0, 0, 0
	}
	body := text[recordHead : size-recordHash]
	rest := body[lengths:]
	for _, h := range []hash.Hash64{r.own, r.common} {
		h.Reset()
		h.Write(text[4:20])
		h.Write(body[:subject])
		h.Write(rest)
		if h == r.own && !bytes.Equal(h.Sum(r.sum[:0]), text[size-recordHash:size]) {
			return 0, 0, 0
		}
	}
	return binary.LittleEndian.Uint64(text[4:]), r.common.Sum64(), size
}

// walk calls fn with every message of a file's content, in its order, and counts
// the places where there is no whole record. It goes on behind each.
func (r *recordReader) walk(text []byte, fn func(seq, sum uint64)) (damaged int) {
	last := uint64(0)
	for at := 0; at < len(text); {
		seq, sum, size := r.next(text[at:])
		if size == 0 {
			damaged++
			at += r.resume(text[at:], last)
			continue
		}
		at += size
		if seq&isTombstone != 0 {
			continue
		}
		if last = max(last, seq&^wasErased); seq != 0 && seq&wasErased == 0 {
			fn(seq, sum)
		}
	}
	return damaged
}

// resume is how far ahead the next whole record begins, behind a damaged one. Only
// where the sequence could follow on is worth a hash.
func (r *recordReader) resume(text []byte, last uint64) int {
	for at := 1; at+recordMin <= len(text); at++ {
		seq := binary.LittleEndian.Uint64(text[at+4:]) &^ (wasErased | isTombstone)
		if seq <= last || seq-last > searchBeyond && last > 0 {
			continue
		}
		if _, _, size := r.next(text[at:]); size > 0 {
			return at
		}
	}
	return len(text)
}

// begins is the first message's sequence in a file; 0 if that cannot be told.
func (r *recordReader) begins(path string) (first uint64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	text := make([]byte, firstLook)
	n, err := io.ReadFull(f, text)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return 0, err
	}
	for text = text[:n]; ; {
		seq, _, size := r.next(text)
		if size == 0 {
			return 0, nil
		}
		if seq&isTombstone == 0 {
			return seq &^ wasErased, nil
		}
		text = text[size:]
	}
}

// walkBlocks calls fn with every message from one sequence to another, both
// included, of the stream whose files are in dir. pace is told of every piece
// that is read, in bytes, and may wait. damaged counts the places that cannot be
// read, in files that may hold such messages.
func walkBlocks(stream, dir string, from, to uint64, pace func(bytes int) error, fn func(seq, sum uint64)) (damaged int, err error) {
	blocks, err := blocksOf(dir)
	if err != nil {
		return 0, err
	}
	begins, readers := make([]uint64, len(blocks)), make([]*recordReader, len(blocks))
	for i, b := range blocks {
		if readers[i], err = newRecordReader(stream, b.number); err != nil {
			return 0, err
		}
		if begins[i], err = readers[i].begins(b.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	for i, b := range blocks {
		ends := uint64(0) // 0: not known
		if i+1 < len(blocks) {
			ends = begins[i+1]
		}
		if begins[i] > to || ends > 0 && ends <= from {
			continue
		}
		text, err := os.ReadFile(b.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // purged meanwhile
		}
		if err != nil {
			return damaged, err
		}
		if err := pace(len(text)); err != nil {
			return damaged, err
		}
		damaged += readers[i].walk(text, func(seq, sum uint64) {
			if seq >= from && seq <= to {
				fn(seq, sum)
			}
		})
	}
	return damaged, nil
}
