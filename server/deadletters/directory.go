package deadletters

import (
	"context"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// directory has an entry for each dead letter from some sequence on, so that letters can be selected and
// counted, the newest first, without reading them. It follows the stream at each request: it reads new
// letters, and drops letters that were removed.
type directory struct {
	reader Reader
	turn   chan struct{} // holds a value while the directory is brought up to date
	names  map[string]string
	span   uint64 // sequences of the next block of earlier letters
	gaps   int    // of the stream when removed letters were dropped

	mu    crash.Mutex
	known known
}

// known is the content of a directory at one moment. It is never changed.
type known struct {
	entries         []entry // by sequence
	first, low, end uint64  // the stream's first sequence; letters with sequences from low to end-1 are known
}

// complete reports whether all letters are known.
func (k *known) complete() bool { return k.low <= k.first }

// entry has the properties by which a request selects a dead letter.
type entry struct {
	seq                              uint64
	failed                           int64 // Unix nanoseconds
	job                              job.ID
	queue, function, errorType, code string
	texts                            string // reason and message, in lower case
	isCut                            bool   // texts has only their beginning
}

const (
	maxEntryText  = 512 // bytes
	maxEntryNames = 1 << 16
	firstSpan     = 512
	maxSpan       = 1 << 22
	fewLetters    = 256    // a block with fewer of them makes the next block larger
	manyLetters   = 2048   // a block with more of them makes the next block smaller
	maxGaps       = 50_000 // up to which the directory asks for the sequences of removed letters
)

func newDirectory(r Reader) *directory {
	return &directory{reader: r, turn: make(chan struct{}, 1), names: map[string]string{}, span: firstSpan}
}

// current returns the present content.
func (d *directory) current() known {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known
}

func (d *directory) set(k known) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known = k
}

// takeTurn blocks until no other goroutine changes the directory, or ctx ends. The caller must call release.
func (d *directory) takeTurn(ctx context.Context) (release func(), err error) {
	select {
	case d.turn <- struct{}{}:
		return func() { <-d.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// update brings the directory up to date: then it knows all letters from some sequence to the end of the
// stream, and none that was removed before the call.
func (d *directory) update(ctx context.Context) (known, error) {
	release, err := d.takeTurn(ctx)
	if err != nil {
		return known{}, err
	}
	defer release()
	for range 3 {
		k, ok, err := d.follow(ctx)
		if ok || err != nil {
			return k, err
		}
		d.span = firstSpan
		d.set(known{})
	}
	return known{}, &job.UnavailableError{Reason: "dead letters are read from a replica that lags", RetryAfter: time.Second}
}

// follow is one attempt of update; ok is false if the directory does not agree with the stream, and has to
// be read again.
func (d *directory) follow(ctx context.Context) (k known, ok bool, err error) {
	state, err := d.reader.LetterState(ctx, false)
	if err != nil {
		return k, false, err
	}
	k = d.current()
	switch {
	case k.end > state.Last+1:
		return k, false, nil
	case k.end == 0:
		k.low, k.end = state.Last+1, state.Last+1
	case k.end <= state.Last:
		added, err := d.read(ctx, k.end, state.Last)
		if err != nil {
			return k, false, err
		}
		k.entries, k.end = append(k.entries, added...), state.Last+1
		d.set(k)
	}
	switch {
	case k.first == state.First && d.gaps == state.Gaps:
		return k, true, nil
	case state.Gaps <= maxGaps:
		if state, err = d.reader.LetterState(ctx, true); err != nil {
			return k, false, err
		}
	case len(k.entries) > 0: // too many to be listed: read again what there is
		return k, false, nil
	}
	k.first, d.gaps = state.First, state.Gaps
	removed := state.Removed
	slices.Sort(removed)
	k.entries = slices.DeleteFunc(slices.Clone(k.entries), func(e entry) bool {
		_, gone := slices.BinarySearch(removed, e.seq)
		return gone || e.seq < state.First
	})
	k.low = min(max(k.low, k.first), k.end)
	if k.complete() && state.Last+1 == k.end && uint64(len(k.entries)) != state.Letters {
		return k, false, nil
	}
	d.set(k)
	return k, true, nil
}

// extend adds one block of earlier letters to the directory.
func (d *directory) extend(ctx context.Context) (known, error) {
	release, err := d.takeTurn(ctx)
	if err != nil {
		return known{}, err
	}
	defer release()
	k := d.current()
	if k.complete() {
		return k, nil
	}
	from := max(k.first, k.low-min(d.span, k.low))
	block, err := d.read(ctx, from, k.low-1)
	if err != nil {
		d.span = max(d.span/4, 1)
		return k, err
	}
	if len(block) < fewLetters {
		d.span = min(d.span*4, maxSpan)
	} else if len(block) > manyLetters {
		d.span = max(d.span/2, 1)
	}
	k.entries, k.low = slices.Concat(block, k.entries), from
	d.set(k)
	return k, nil
}

// read returns the entries of the letters with sequences from from to until.
func (d *directory) read(ctx context.Context, from, until uint64) (entries []entry, err error) {
	err = d.reader.DeadLetters(ctx, "", from, until, func(b streams.Batch) bool {
		l := parse(&b)
		entries = append(entries, d.entryOf(&l))
		return ctx.Err() == nil
	})
	if err == nil {
		err = ctx.Err()
	}
	return entries, err
}

func (d *directory) entryOf(l *letter) entry {
	texts := strings.ToLower(l.Reason)
	if l.Error != nil && l.Error.Message != l.Reason {
		texts += "\n" + strings.ToLower(l.Error.Message)
	}
	e := entry{
		seq: l.number, failed: l.Failed.UnixNano(), job: l.job, queue: d.intern(l.Queue), function: d.intern(l.Function),
		errorType: d.intern(l.errorType()), texts: d.intern(texts[:min(len(texts), maxEntryText)]), isCut: len(texts) > maxEntryText,
	}
	if l.Error != nil {
		e.code = d.intern(l.Error.Code)
	}
	return e
}

// failedWith reports whether the error's type or code is text, or texts contains it. If the entry isCut, the
// rest of the letter may contain it too.
func (e *entry) failedWith(text string) bool {
	return strings.EqualFold(e.errorType, text) || strings.EqualFold(e.code, text) || strings.Contains(e.texts, strings.ToLower(text))
}

// intern returns a copy of text. Entries with the same text share the copy.
func (d *directory) intern(text string) string {
	if shared, ok := d.names[text]; ok {
		return shared
	}
	if len(d.names) >= maxEntryNames {
		clear(d.names)
	}
	text = strings.Clone(text)
	d.names[text] = text
	return text
}

// before returns the entries with sequences of at most seq, newest last.
func (k *known) before(seq uint64) []entry {
	return k.entries[:sort.Search(len(k.entries), func(i int) bool { return k.entries[i].seq > seq })]
}
