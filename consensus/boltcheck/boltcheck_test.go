package boltcheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// writeDB creates a file like that of Raft's store: two buckets, keys of eight bytes,
// values of different sizes, some of them deleted again.
func writeDB(t *testing.T, rng *rand.Rand) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raft.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		conf, err := tx.CreateBucket([]byte("conf"))
		if err != nil {
			return err
		}
		_, err = tx.CreateBucket([]byte("logs"))
		return errors.Join(err, conf.Put([]byte("CurrentTerm"), key(7)))
	})
	for n := uint64(0); n < 1000 && err == nil; n += 20 {
		err = db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("logs"))
			for i := n; i < n+20; i++ {
				size := 1 + rng.IntN(400)
				if i%97 == 0 {
					size = 10000
				}
				if err := b.Put(key(i), make([]byte, size)); err != nil {
					return err
				}
				if n >= 500 {
					if err := b.Delete(key(i - 500)); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func key(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func newRand(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestCheck_Valid(t *testing.T) {
	d := newRand(t)
	for range 5 {
		if err := Check(writeDB(t, d)); err != nil {
			t.Error(err)
		}
	}
}

// TestCheck_DetectsDamage checks that damage to the structure of the pages is detected.
func TestCheck_DetectsDamage(t *testing.T) {
	d := newRand(t)
	whole, err := os.ReadFile(writeDB(t, d))
	if err != nil {
		t.Fatal(err)
	}
	root := 4096 * int(binary.LittleEndian.Uint64(whole[newestMeta(whole)+headerSize+16:]))
	for _, c := range []struct {
		name   string
		offset int
	}{
		{"the first meta page", 16 + 16}, {"the second meta page", 4096 + 16 + 40}, {"a checksum", 16 + sumOffset},
		{"the root's id", root}, {"the root's type", root + 8}, {"the root's overflow", root + 13}, {"position of the first bucket's key", root + headerSize + 5},
		{"a bucket's root", root + int(binary.LittleEndian.Uint32(whole[root+headerSize+elemSize+4:])) + headerSize + elemSize + 4 + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken := append([]byte(nil), whole...)
			broken[c.offset] ^= 0x41
			if err := checkBytes(t, broken); err == nil {
				t.Error("damage not detected")
			}
		})
	}
	t.Run("truncated", func(t *testing.T) {
		high := int(binary.LittleEndian.Uint64(whole[newestMeta(whole)+headerSize+40:]))
		for _, size := range []int{0, 100, 5000, 3 * 4096, high * 4096 / 2} {
			if err := checkBytes(t, whole[:size]); err == nil {
				t.Errorf("truncation to %d bytes not detected", size)
			}
		}
	})
}

// newestMeta returns the offset of the newer meta page.
func newestMeta(file []byte) int {
	tx := func(at int) uint64 { return binary.LittleEndian.Uint64(file[at+headerSize+48:]) }
	if tx(4096) > tx(0) {
		return 4096
	}
	return 0
}

func checkBytes(t *testing.T, content []byte) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raft.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return Check(path)
}

// TestCheck_AcceptedIsReadable checks that a file that passes can be read completely
// with bbolt, whichever bit was flipped. Otherwise bbolt panics, and the test with it.
func TestCheck_AcceptedIsReadable(t *testing.T) {
	d := newRand(t)
	whole, err := os.ReadFile(writeDB(t, d))
	if err != nil {
		t.Fatal(err)
	}
	high := int(binary.LittleEndian.Uint64(whole[newestMeta(whole)+headerSize+40:])) * 4096
	passed := 0
	for range 100 {
		at, bit := d.IntN(high), byte(1)<<d.IntN(8)
		if d.IntN(2) == 0 { // most structure is at the start of a page
			at = at/4096*4096 + d.IntN(200)
		}
		broken := append([]byte(nil), whole...)
		broken[at] ^= bit
		path := filepath.Join(t.TempDir(), "raft.db")
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if Check(path) != nil {
			continue
		}
		passed++
		if err := readDB(path); err != nil {
			t.Errorf("bit %#x at %d passed, but reading fails: %v", bit, at, err)
		}
	}
	t.Logf("%d of 100 passed", passed)
}

func readDB(path string) (err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				if b.Get(k) == nil {
					return fmt.Errorf("key %x of %s is not found", k, name)
				}
				return nil
			})
		})
	})
}
