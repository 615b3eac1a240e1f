// Package durable writes files so that a power loss leaves either the old or the new
// content, and so that other users of the host cannot read them.
package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The modes of what a node keeps on the disk. They give access to the node's user only, because
// the ledger has the secret of the yard, and lanes have the params of jobs.
const (
	DirMode  fs.FileMode = 0o700
	FileMode fs.FileMode = 0o600
)

// Protect removes the permissions of group and others from a directory and everything in it. It
// ignores files of another user, such as a volume that a container mounts as its data
// directory, and files that disappear meanwhile.
func Protect(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() && !entry.Type().IsRegular() {
			return ignoreForeign(err)
		}
		info, err := entry.Info()
		if err != nil {
			return ignoreForeign(err)
		}
		if mode := info.Mode(); mode.Perm()&0o077 != 0 {
			err = os.Chmod(path, mode&^0o077)
		}
		return ignoreForeign(err)
	})
}

// ignoreForeign returns err, or nil if the file is gone or belongs to another user.
func ignoreForeign(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// WriteFile replaces the file at path, atomically and with mode 0600. When it returns
// nil, content is on the disk.
func WriteFile(path string, content []byte) error {
	temporary := path + ".new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, FileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the creation and renaming of files in a directory durable.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
