package segment

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
	"strings"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	termChunkSize = 4 << 10 // bytes at which a chunk of terms ends
	maxInline     = 32      // documents of a term whose posting is beside it
	manyTerms     = 32      // of a chunk, from which on it has a union
	spanChunks    = 16      // that have a union together
)

// appendTerm appends the key of a term: its field, the name of a label, and the text.
func appendTerm(b []byte, f query.Field, name, text string) []byte {
	b = append(b, byte(f))
	if f == query.FieldMeta || f == query.FieldParams {
		b = appendText(b, name)
	}
	return append(b, text...)
}

// termWriter collects the terms of documents.
type termWriter struct {
	numbers map[string]uint32 // by key
	keys    []string          // by number
	pairs   []termPair        // in the order of the documents
	key     []byte
	latest  [query.FieldWorker + 1]struct { // by field: the last term, which the next document often has, too
		text   string
		number uint32
	}
}

type termPair struct {
	term uint32
	doc  uint16
}

// addDocument adds the terms of document n. Documents must be added in ascending order.
func (w *termWriter) addDocument(n uint16, d *job.Document) {
	w.add(n, query.FieldQueue, "", d.Queue)
	w.add(n, query.FieldFunction, "", d.Function)
	w.add(n, query.FieldState, "", d.State.String())
	w.add(n, query.FieldNode, "", d.Node)
	w.add(n, query.FieldWorker, "", d.Worker)
	w.add(n, query.FieldKey, "", d.Key)
	w.add(n, query.FieldLimitKey, "", d.LimitKey)
	for _, tag := range d.Tags {
		w.add(n, query.FieldTag, "", tag)
	}
	for _, l := range d.Meta {
		w.add(n, query.FieldMeta, l.Name, l.Value)
	}
	for _, l := range d.Params {
		w.add(n, query.FieldParams, l.Name, l.Value)
	}
	if d.Fault != nil {
		w.add(n, query.FieldError, "", query.Fold(d.Fault.Type))
		w.add(n, query.FieldError, "", query.Fold(d.Fault.Code))
		for _, word := range query.Words(d.Fault.Message) {
			w.add(n, query.FieldText, "", word)
		}
	}
}

// add adds a term, unless its text is empty.
func (w *termWriter) add(n uint16, f query.Field, name, text string) {
	if text == "" {
		return
	}
	latest := &w.latest[f]
	if f == query.FieldMeta || f == query.FieldParams || latest.text != text {
		w.key = appendTerm(w.key[:0], f, name, text)
		latest.text, latest.number = text, w.number()
	}
	w.pairs = append(w.pairs, termPair{latest.number, n})
}

// number returns the number of the term whose key is in w.key.
func (w *termWriter) number() uint32 {
	number, ok := w.numbers[string(w.key)]
	if !ok {
		number = uint32(len(w.keys))
		key := string(w.key)
		w.keys = append(w.keys, key)
		w.numbers[key] = number
	}
	return number
}

// termChunk is what the directory has of a chunk of terms: where it is, its first key, and the
// posting of all documents that have one of its terms.
type termChunk struct {
	chunk
	first string
	union union
}

// union is the posting of all documents that have one of the terms of one or more chunks. The
// count of documents is 0 if there is no such posting, because it would save little.
type union struct {
	chunk
	count int
}

// write writes the postings and the terms.
func (w *termWriter) write(to *chunkWriter) ([]termChunk, []union) {
	ends := make([]int, len(w.keys)+1) // of each term's documents in docs, after they are placed
	for _, p := range w.pairs {
		ends[p.term+1]++
	}
	for i := range w.keys {
		ends[i+1] += ends[i]
	}
	docs := make([]uint16, len(w.pairs))
	for _, p := range w.pairs {
		docs[ends[p.term]] = p.doc
		ends[p.term]++
	}
	sorted := make([]uint32, len(w.keys))
	for i := range sorted {
		sorted[i] = uint32(i)
	}
	slices.SortFunc(sorted, func(a, b uint32) int { return cmp.Compare(w.keys[a], w.keys[b]) })

	chunks := &termChunkWriter{to: to}
	for _, number := range sorted {
		start := 0
		if number > 0 {
			start = ends[number-1]
		}
		chunks.add(w.keys[number], slices.Compact(docs[start:ends[number]]))
	}
	chunks.flush()
	return chunks.written, chunks.spans
}

// termChunkWriter writes chunks of terms.
type termChunkWriter struct {
	to            *chunkWriter
	written       []termChunk
	data, posting []byte
	first, last   string // keys in data
	terms         int    // in data
	union         bitmap // of data
	spans         []union
	span          bitmap // of the chunks since the last one that ended a span
}

// add adds a term. Terms must be added in the order of their keys.
func (w *termChunkWriter) add(key string, docs []uint16) {
	if w.terms == 0 {
		w.first, w.last = key, ""
	}
	for _, n := range docs {
		w.union.add(n)
	}
	shared := sharedPrefix(w.last, key)
	w.data = binary.AppendUvarint(w.data, uint64(shared))
	w.data = appendText(w.data, key[shared:])
	w.data = binary.AppendUvarint(w.data, uint64(len(docs)))
	w.posting = appendPosting(w.posting[:0], docs)
	w.data = binary.AppendUvarint(w.data, uint64(len(w.posting)))
	if len(docs) <= maxInline {
		w.data = append(w.data, w.posting...)
	} else {
		w.data = binary.AppendUvarint(w.data, uint64(w.to.write(w.posting).offset))
	}
	w.last = key
	if w.terms++; len(w.data) >= termChunkSize {
		w.flush()
	}
}

// flush writes the terms that were added since the last chunk.
func (w *termChunkWriter) flush() {
	if w.terms == 0 {
		return
	}
	c := termChunk{chunk: w.to.write(w.data), first: w.first}
	if w.terms >= manyTerms {
		c.union = w.writeUnion(&w.union)
	}
	w.span.or(&w.union)
	w.written = append(w.written, c)
	if len(w.written)%spanChunks == 0 {
		w.spans = append(w.spans, w.writeUnion(&w.span))
		w.span = bitmap{}
	}
	w.data, w.terms, w.union = w.data[:0], 0, bitmap{}
}

// writeUnion writes the posting of a set, unless it is small.
func (w *termChunkWriter) writeUnion(set *bitmap) union {
	count := set.count()
	if count <= maxInline {
		return union{}
	}
	w.posting = appendPosting(w.posting[:0], slices.AppendSeq(make([]uint16, 0, count), set.all(false)))
	return union{w.to.write(w.posting), count}
}

func sharedPrefix(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// termChunks returns the range of chunks that may have keys that begin with prefix.
func (s *Segment) termChunks(prefix string) (from, to int) {
	from = sort.Search(len(s.terms), func(i int) bool { return s.terms[i].first > prefix }) - 1
	to = sort.Search(len(s.terms), func(i int) bool {
		first := s.terms[i].first
		return first > prefix && !strings.HasPrefix(first, prefix)
	})
	return max(0, from), to
}

// addTerms adds the documents to set that have a term with a key or, if prefixes, one that
// begins with it.
func (s *reader) addTerms(set *bitmap, key string, prefixes bool) {
	from, to := s.termChunks(key)
	if !prefixes {
		to = min(to, from+1)
	}
	for i := from; i < to && s.err == nil; i++ {
		if prefixes {
			if u, chunks := s.unionAt(i, to, key); chunks > 0 {
				s.addPosting(set, u.count, nil, u.chunk)
				i += chunks - 1
				continue
			}
		}
		s.buffer = s.read(s.terms[i].chunk, s.buffer)
		d := &decoder{data: s.buffer}
		s.key = s.key[:0]
		for len(d.data) > 0 {
			shared := d.uvarint()
			suffix := d.bytes(d.uvarint())
			count, size := int(d.uvarint()), d.uvarint()
			if shared > uint64(len(s.key)) || count > MaxDocuments {
				d.fail()
				break
			}
			s.key = append(s.key[:shared], suffix...)
			inline, offset := []byte(nil), uint64(0)
			if count <= maxInline {
				inline = d.bytes(size)
			} else {
				offset = d.uvarint()
			}
			order := cmp.Compare(string(s.key), key)
			switch {
			case order == 0 || prefixes && order > 0 && strings.HasPrefix(string(s.key), key):
				s.addPosting(set, count, inline, chunk{int64(offset), int64(size)})
			case order > 0:
				return
			}
		}
		s.fail(d.err)
	}
}

// unionAt returns the largest union from chunk i on, before chunk to, all of whose terms begin with
// prefix, and its number of chunks, which is 0 if there is none.
func (s *Segment) unionAt(i, to int, prefix string) (union, int) {
	inside := func(end int) bool {
		return end < to && strings.HasPrefix(s.terms[i].first, prefix) && strings.HasPrefix(s.terms[end].first, prefix)
	}
	if i%spanChunks == 0 && inside(i+spanChunks) && s.spans[i/spanChunks].count > 0 {
		return s.spans[i/spanChunks], spanChunks
	}
	if s.terms[i].union.count > 0 && inside(i+1) {
		return s.terms[i].union, 1
	}
	return union{}, 0
}

// addPosting adds the documents of a posting, which is inline or in a chunk.
func (s *reader) addPosting(set *bitmap, count int, inline []byte, at chunk) {
	if count > maxInline {
		if at.size > bitmapSize || at.offset < 0 {
			s.fail(ErrDamaged)
			return
		}
		s.posting = s.read(at, s.posting)
		inline = s.posting
	}
	d := &decoder{data: inline}
	d.addPosting(set, count)
	s.fail(d.err)
}
