package durable

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"a longer content", "short", ""} {
		if err := WriteFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("the file has %q, %v, want %q", got, err, content)
		}
	}
	if names, err := filepath.Glob(path + "*"); err != nil || len(names) != 1 {
		t.Errorf("the directory has %q, %v, want the file only", names, err)
	}
}

// TestWriteFile_Syncs checks that a content which cannot be synced is an error, and does
// not replace the old one. The content goes to a device, which takes writes and no sync.
func TestWriteFile_Syncs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := WriteFile(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(os.DevNull, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v, want the error of the sync, %v", err, syscall.EINVAL)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("the file has %q, %v, want the old content", got, err)
	}
}

// TestSyncDir checks that a directory which cannot be synced is an error.
func TestSyncDir(t *testing.T) {
	if err := SyncDir(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	const processes = "/proc"
	if _, err := os.Stat(processes); err != nil {
		t.Skip("no file system here whose directories cannot be synced: ", err)
	}
	if err := SyncDir(processes); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v, want the error of the sync, %v", err, syscall.EINVAL)
	}
}

// TestProtect checks that only the permissions of others are removed, whatever the files are.
func TestProtect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	modes := map[string]os.FileMode{"": 0o755, "raft": 0o755, "raft/log": 0o644, "program": 0o755, "key": 0o400}
	for _, name := range []string{"", "raft"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range modes {
		path := filepath.Join(dir, name)
		if name != "" && name != "raft" {
			if err := WriteFile(path, []byte("content")); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/nowhere", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := Protect(dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range modes {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := info.Mode().Perm(), mode&0o700; got != want {
			t.Errorf("%q has mode %o, want %o", name, got, want)
		}
	}
}
