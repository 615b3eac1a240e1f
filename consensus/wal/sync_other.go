//go:build !linux

package wal

import "os"

// syncData makes what was written to f durable.
func syncData(f *os.File) error { return f.Sync() }

// preallocate makes f, which is empty, size bytes long.
func preallocate(f *os.File, size int64) error { return f.Truncate(size) }

// dropCache would make the next reads of f come from the disk.
func dropCache(*os.File) error { return nil }
