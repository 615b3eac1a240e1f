package segment

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/s2"

	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	magic         = "yardseg2" // at the beginning, and at the end of the file
	documentChunk = 64         // documents
	idChunk       = 256        // ids
	orderChunk    = 128        // numbers of documents
)

// Sort sorts documents by their creation and ids: the order of a segment.
func Sort(docs []*job.Document) {
	type dated struct {
		created int64
		*job.Document
	}
	order := make([]dated, len(docs))
	for i, d := range docs {
		order[i] = dated{d.Created.UnixNano(), d}
	}
	slices.SortFunc(order, func(a, b dated) int {
		if a.created != b.created {
			return cmp.Compare(a.created, b.created)
		}
		return bytes.Compare(a.ID[:], b.ID[:])
	})
	for i, d := range order {
		docs[i] = d.Document
	}
}

func cursorOf(d *job.Document) Cursor { return Cursor{d.Created.UnixNano(), d.ID} }

// Write writes a segment of documents, of which there must be 1 to [MaxDocuments] in the order of [Sort].
func Write(to io.Writer, docs []*job.Document) error {
	if len(docs) == 0 || len(docs) > MaxDocuments {
		return fmt.Errorf("a segment of %d documents; must have 1 to %d", len(docs), MaxDocuments)
	}
	if !slices.IsSortedFunc(docs, func(a, b *job.Document) int { return cursorOf(a).Compare(cursorOf(b)) }) {
		return errors.New("documents of a segment are not sorted by their creation and ids")
	}
	w := &chunkWriter{w: to}
	w.raw([]byte(magic))
	directory := binary.AppendUvarint(nil, uint64(len(docs)))
	directory = writeBodies(w, directory, docs)
	directory = writeColumns(w, directory, docs)
	directory = writeIDs(w, directory, docs)
	terms := &termWriter{numbers: make(map[string]uint32, 2*len(docs)), pairs: make([]termPair, 0, 12*len(docs))}
	for i, d := range docs {
		terms.addDocument(uint16(i), d)
	}
	chunks, spans := terms.write(w)
	directory = binary.AppendUvarint(directory, uint64(len(chunks)))
	for _, c := range chunks {
		directory = appendText(appendChunk(directory, c.chunk), c.first)
		directory = appendUnion(directory, c.union)
	}
	for _, u := range spans {
		directory = appendUnion(directory, u)
	}
	at := w.write(directory)
	tail := binary.LittleEndian.AppendUint64(nil, uint64(at.offset))
	w.write(append(binary.LittleEndian.AppendUint64(tail, uint64(at.size)), magic...))
	return w.err
}

func appendChunk(b []byte, at chunk) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(at.offset)), uint64(at.size))
}

func appendUnion(b []byte, u union) []byte {
	return binary.AppendUvarint(appendChunk(b, u.chunk), uint64(u.count))
}

// writeBodies writes the documents without their prefixes.
func writeBodies(w *chunkWriter, directory []byte, docs []*job.Document) []byte {
	var plain, bodies, packed []byte
	for part := range slices.Chunk(docs, documentChunk) {
		plain, bodies = plain[:0], bodies[:0]
		for _, d := range part {
			start := len(bodies)
			bodies = appendBody(bodies, d)
			plain = binary.AppendUvarint(plain, uint64(len(bodies)-start))
		}
		plain = append(plain, bodies...)
		packed = s2.EncodeBetter(packed[:cap(packed)], plain)
		directory = appendChunk(directory, w.write(packed))
	}
	return directory
}

func writeColumns(w *chunkWriter, directory []byte, docs []*job.Document) []byte {
	var data []byte
	numbers := make([]int64, 0, columnChunk)
	for _, f := range columnFields {
		for docs := range slices.Chunk(docs, columnChunk) {
			numbers = numbers[:0]
			for _, d := range docs {
				numbers = append(numbers, number(f, d))
			}
			var part columnPart
			if data, part = appendColumn(data[:0], numbers); part.width > 0 {
				part.chunk = w.write(data)
			}
			gaps := byte(0)
			if part.gaps {
				gaps = 1
			}
			directory = append(appendChunk(directory, part.chunk), byte(part.width), gaps)
			directory = binary.AppendVarint(binary.AppendVarint(directory, part.low), part.high)
		}
	}
	return directory
}

// writeIDs writes the ids of the documents, and the documents in the order of their ids.
func writeIDs(w *chunkWriter, directory []byte, docs []*job.Document) []byte {
	var data []byte
	for docs := range slices.Chunk(docs, idChunk) {
		data = data[:0]
		for _, d := range docs {
			data = append(data, d.ID[:]...)
		}
		directory = appendChunk(directory, w.write(data))
	}
	type numberedID struct {
		high, low uint64
		number    uint16
	}
	order := make([]numberedID, len(docs))
	for i, d := range docs {
		order[i] = numberedID{binary.BigEndian.Uint64(d.ID[:8]), binary.BigEndian.Uint64(d.ID[8:]), uint16(i)}
	}
	slices.SortFunc(order, func(a, b numberedID) int {
		return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low), cmp.Compare(a.number, b.number))
	})
	for order := range slices.Chunk(order, orderChunk) {
		data = data[:0]
		for _, n := range order {
			data = binary.LittleEndian.AppendUint16(data, n.number)
		}
		directory = appendChunk(directory, w.write(data))
		directory = append(directory, docs[order[0].number].ID[:]...)
	}
	return directory
}
