package edge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
	"sync/atomic"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// ref names a dispatch.
type ref struct {
	id job.ID
	n  uint32
}

type token = [overhop.TokenLen]byte

// tokens makes and checks lease tokens: the dispatch's number in eight bytes,
// then eight bytes of a MAC over job and number under the yard's secret. Any
// node can check one, nobody has to keep it, and a guess succeeds once in 2^64.
type tokens struct {
	secret func() []byte // the yard's; empty until known

	found atomic.Bool
	macs  sync.Pool // of hash.Hash keyed by the secret
}

// known tells whether tokens can be made yet.
func (t *tokens) known() bool {
	if t.found.Load() {
		return true
	}
	secret := t.secret()
	if len(secret) == 0 {
		return false
	}
	t.macs.New = func() any { return hmac.New(sha256.New, secret) }
	t.found.Store(true)
	return true
}

// of makes a dispatch's token; tokens must be known.
func (t *tokens) of(r ref) (tok token) {
	binary.BigEndian.PutUint64(tok[:8], uint64(r.n))
	mac := t.macs.Get().(hash.Hash)
	mac.Reset()
	mac.Write(r.id[:])
	mac.Write(tok[:8])
	var sum [sha256.Size]byte
	copy(tok[8:], mac.Sum(sum[:0])[:8])
	t.macs.Put(mac)
	return tok
}

// check reads whose token b is; ok is false for a forged or foreign one.
func (t *tokens) check(id job.ID, b []byte) (r ref, ok bool) {
	if len(b) != overhop.TokenLen || !t.known() {
		return ref{}, false
	}
	n := binary.BigEndian.Uint64(b)
	if n == 0 || n > 1<<32-1 {
		return ref{}, false
	}
	r = ref{id, uint32(n)}
	want := t.of(r)
	return r, hmac.Equal(want[:], b)
}
