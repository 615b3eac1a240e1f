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
	manyTerms     = 256     // of a field, from which on all of its documents have a posting
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
}

type termPair struct {
	term uint32
	doc  uint16
}

// addDocument adds the terms of document n. Those of a term must be added in order.
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
	w.key = appendTerm(w.key[:0], f, name, text)
	number, ok := w.numbers[string(w.key)]
	if !ok {
		number = uint32(len(w.keys))
		key := string(w.key)
		w.keys = append(w.keys, key)
		w.numbers[key] = number
	}
	w.pairs = append(w.pairs, termPair{number, n})
}

// termChunk is what the directory has of a chunk of terms.
type termChunk struct {
	chunk
	first string
}

// termGroup is what the directory has of the terms of a field, or of a label with a name: the
// posting of all documents that have one of them. Groups of few terms have none.
type termGroup struct {
	chunk
	key   string // with an empty text
	count int    // of documents
}

// groupKey returns the key of the group of a term.
func groupKey(key string) string {
	if f := query.Field(key[0]); f != query.FieldMeta && f != query.FieldParams {
		return key[:1]
	}
	length, n := binary.Uvarint([]byte(key[1:min(len(key), 1+binary.MaxVarintLen64)]))
	return key[:1+n+int(length)]
}

// groupWriter collects the documents of a group.
type groupWriter struct {
	to     *chunkWriter
	groups []termGroup
	key    string
	terms  int
	set    bitmap
}

// add adds a term. The terms of a group must follow each other.
func (w *groupWriter) add(key string, docs []uint16) {
	if w.key == "" || !strings.HasPrefix(key, w.key) {
		w.flush()
		w.key = groupKey(key)
	}
	w.terms++
	for _, n := range docs {
		w.set.add(n)
	}
}

func (w *groupWriter) flush() {
	if count := w.set.count(); w.terms >= manyTerms && count > maxInline {
		posting := appendPosting(nil, slices.AppendSeq(make([]uint16, 0, count), w.set.all(false)))
		w.groups = append(w.groups, termGroup{w.to.write(posting), w.key, count})
	}
	w.terms, w.set = 0, bitmap{}
}

// write writes the postings and the terms.
func (w *termWriter) write(to *chunkWriter) ([]termChunk, []termGroup) {
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

	var chunks []termChunk
	var data, posting []byte
	groups := &groupWriter{to: to}
	first, last := "", ""
	flush := func() {
		if len(data) > 0 {
			chunks = append(chunks, termChunk{to.write(data), first})
			data, last = data[:0], ""
		}
	}
	for _, number := range sorted {
		start := 0
		if number > 0 {
			start = ends[number-1]
		}
		list := slices.Compact(docs[start:ends[number]])
		key := w.keys[number]
		groups.add(key, list)
		if len(data) == 0 {
			first = key
		}
		shared := sharedPrefix(last, key)
		data = binary.AppendUvarint(data, uint64(shared))
		data = appendText(data, key[shared:])
		data = binary.AppendUvarint(data, uint64(len(list)))
		posting = appendPosting(posting[:0], list)
		data = binary.AppendUvarint(data, uint64(len(posting)))
		if len(list) <= maxInline {
			data = append(data, posting...)
		} else {
			data = binary.AppendUvarint(data, uint64(to.write(posting).offset))
		}
		if last = key; len(data) >= termChunkSize {
			flush()
		}
	}
	flush()
	groups.flush()
	return chunks, groups.groups
}

// group returns the group with a key, or nil.
func (s *Segment) group(key string) *termGroup {
	for i := range s.groups {
		if s.groups[i].key == key {
			return &s.groups[i]
		}
	}
	return nil
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
	if g := s.group(key); g != nil && prefixes {
		s.addPosting(set, g.count, nil, g.chunk)
		return
	}
	from, to := s.termChunks(key)
	if !prefixes {
		to = min(to, from+1)
	}
	for i := from; i < to && s.err == nil; i++ {
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

// addPosting adds the documents of a posting, which is inline or in a chunk.
func (s *reader) addPosting(set *bitmap, count int, inline []byte, at chunk) {
	if count > maxInline {
		if at.size > bitmapSize*3 || at.offset < 0 {
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
