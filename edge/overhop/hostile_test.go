package overhop

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"
)

// allocated returns the memory that f allocates, in bytes.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// many returns a map or an array of n times the same bytes.
func many(head byte, n int, item string) Raw {
	b := binary.BigEndian.AppendUint32([]byte{head}, uint32(n))
	return append(b, bytes.Repeat([]byte(item), n)...)
}

// distinct returns a map of n different keys with empty text.
func distinct(n int) Raw {
	b := AppendMap(nil, n)
	for i := range n {
		b = append(b, 0xa3, byte(i%128), byte(i>>7%128), byte(i>>14), 0xa0)
	}
	return b
}

// The memory for parsing a payload is in proportion to its size, whatever it
// contains.
func TestHostilePayloads(t *testing.T) {
	const n = 50_000
	for name, value := range map[string]Raw{
		"empty arrays":   many(0xdd, n, "\x90"),
		"nils":           many(0xdd, n, "\xc0"),
		"texts":          many(0xdd, n, "\xa1x"),
		"one key":        many(0xdf, n, "\xa0\xc0"),
		"different keys": distinct(n),
		"empty maps":     many(0xdd, n, "\x80"),
		"held":           many(0xdd, n, "\x82\xa3jid\xa0\xa3tok\xc4\x00"),
		"long text":      AppendStr(nil, bytes.Repeat([]byte("x"), 4*n)),
		"binary":         AppendBin(nil, make([]byte, 4*n)),
	} {
		for _, key := range []string{
			"q", "jid", "sid", "name", "config", "job_payload", "trace", "fn", "key", "lines", "jobs", "statuses",
			"result", "error", "data", "reason", "ext", "unique_key", "scheduled_at",
		} {
			p := Raw(AppendMap(nil, 4))
			p = append(AppendStr(p, key), value...)
			for _, other := range []struct{ key, value string }{{"q", "q"}, {"jid", "q:1"}, {"tok", ""}} {
				if other.key == key {
					other.key = "spare"
				}
				p = AppendStr(p, other.key)
				if other.key == "tok" {
					p = AppendBin(p, make([]byte, TokenLen))
				} else {
					p = AppendStr(p, other.value)
				}
			}
			used := allocated(func() { parseAll(t, p) })
			if limit := uint64(12*len(p) + 64<<10); used > limit {
				t.Errorf("%d bytes with %s under %s cost %d bytes, at most %d", len(p), name, key, used, limit)
			}
		}
	}
}

// So is the memory for converting a payload to JSON.
func TestHostileConversions(t *testing.T) {
	const n = 1_000_000
	for name, p := range map[string]Raw{
		"one key": many(0xdf, n, "\xa0\xc0"), "different keys": distinct(n), "arrays": many(0xdd, n, "\x90"),
		"maps": many(0xdd, n, "\x81\xa0\xc0"), "control characters": AppendStr(nil, bytes.Repeat([]byte{1}, n)),
	} {
		used := allocated(func() { AppendJSON(nil, p) })
		if limit := uint64(40 * len(p)); used > limit {
			t.Errorf("%d bytes of %s cost %d bytes as JSON, at most %d", len(p), name, used, limit)
		}
	}
}
