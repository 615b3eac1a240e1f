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

// write makes a file as raft's store does: two buckets, keys of eight bytes,
// values of all sizes, some of them taken away again.
func write(t *testing.T, dice *rand.Rand) string {
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
				size := 1 + dice.IntN(400)
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

func dice(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestFile_WholeOnesPass(t *testing.T) {
	d := dice(t)
	for range 5 {
		if err := File(write(t, d)); err != nil {
			t.Error(err)
		}
	}
}

// Whatever bbolt trips over is found: a byte anywhere in the pages' form.
func TestFile_DamageIsFound(t *testing.T) {
	d := dice(t)
	whole, err := os.ReadFile(write(t, d))
	if err != nil {
		t.Fatal(err)
	}
	root := 4096 * int(binary.LittleEndian.Uint64(whole[newest(whole)+headerSize+16:]))
	for _, at := range []struct {
		what   string
		offset int
	}{
		{"the first meta page", 16 + 16}, {"the second meta page", 4096 + 16 + 40}, {"a checksum", 16 + sumOffset},
		{"the root's id", root}, {"the root's kind", root + 8}, {"the root's overflow", root + 13}, {"where the first bucket's key lies", root + headerSize + 5},
		{"a bucket's root", root + int(binary.LittleEndian.Uint32(whole[root+headerSize+elemSize+4:])) + headerSize + elemSize + 4 + 1},
	} {
		t.Run(at.what, func(t *testing.T) {
			broken := append([]byte(nil), whole...)
			broken[at.offset] ^= 0x41
			if err := check1(t, broken); err == nil {
				t.Error("passed as whole")
			}
		})
	}
	t.Run("cut short", func(t *testing.T) {
		high := int(binary.LittleEndian.Uint64(whole[newest(whole)+headerSize+40:]))
		for _, size := range []int{0, 100, 5000, 3 * 4096, high * 4096 / 2} {
			if err := check1(t, whole[:size]); err == nil {
				t.Errorf("%d bytes passed as whole", size)
			}
		}
	})
}

// newest is the offset of the newer meta page.
func newest(file []byte) int {
	tx := func(at int) uint64 { return binary.LittleEndian.Uint64(file[at+headerSize+48:]) }
	if tx(4096) > tx(0) {
		return 4096
	}
	return 0
}

func check1(t *testing.T, content []byte) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "raft.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return File(path)
}

// A file that passes can be opened and read whole, whichever byte was turned;
// bbolt would panic otherwise, and with it this test.
func TestFile_WhatPassesCanBeRead(t *testing.T) {
	d := dice(t)
	whole, err := os.ReadFile(write(t, d))
	if err != nil {
		t.Fatal(err)
	}
	high := int(binary.LittleEndian.Uint64(whole[newest(whole)+headerSize+40:])) * 4096
	passed := 0
	for range 100 {
		at, bit := d.IntN(high), byte(1)<<d.IntN(8)
		if d.IntN(2) == 0 { // pages' heads and their elements are where form lies
			at = at/4096*4096 + d.IntN(200)
		}
		broken := append([]byte(nil), whole...)
		broken[at] ^= bit
		path := filepath.Join(t.TempDir(), "raft.db")
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if File(path) != nil {
			continue
		}
		passed++
		if err := read(path); err != nil {
			t.Errorf("bit %#x at %d passed, and then: %v", bit, at, err)
		}
	}
	t.Logf("%d of 100 passed", passed)
}

func read(path string) (err error) {
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
