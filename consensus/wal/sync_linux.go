package wal

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// syncData makes what was written to f durable. Unlike [os.File.Sync], it does not write
// the times of the file.
func syncData(f *os.File) error {
	return uninterrupted("fdatasync", f, func() error { return syscall.Fdatasync(int(f.Fd())) })
}

// preallocate reserves size bytes for f, which is empty.
func preallocate(f *os.File, size int64) error {
	err := uninterrupted("fallocate", f, func() error { return syscall.Fallocate(int(f.Fd()), 0, 0, size) })
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return f.Truncate(size) // of this file system
	}
	return err
}

// dropCache makes the next reads of f, which was synced, come from the disk.
func dropCache(f *os.File) error {
	return uninterrupted("fadvise", f, func() error { return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) })
}

// uninterrupted calls do, again if a signal has interrupted it.
func uninterrupted(op string, f *os.File, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return &os.PathError{Op: op, Path: f.Name(), Err: err}
		}
	}
}
