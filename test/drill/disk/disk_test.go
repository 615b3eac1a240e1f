package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func newDisk(t *testing.T, size int64) *Disk {
	t.Helper()
	if reason := Missing(); reason != "" {
		t.Skip(reason)
	}
	d, err := New(filepath.Join(t.TempDir(), "disk"), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func write(t *testing.T, f *os.File, text string) {
	t.Helper()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func syncFile(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// TestCut_KeepsSyncedData checks that synced data, and no other, survives a loss of
// power.
func TestCut_KeepsSyncedData(t *testing.T) {
	d := newDisk(t, 64<<20)
	kept := create(t, filepath.Join(d.Dir, "kept"))
	write(t, kept, "synced")
	syncFile(t, kept.Name())
	syncFile(t, d.Dir)
	write(t, kept, " and not")
	lost := create(t, filepath.Join(d.Dir, "lost"))
	write(t, lost, "never synced")
	kept.Close()
	lost.Close()

	if err := d.Cut(); err != nil {
		t.Fatal(err)
	}
	if found, _ := os.ReadDir(d.Dir); len(found) > 0 {
		t.Errorf("after the cut the mount point contains %v", found)
	}
	if err := d.Restore(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(kept.Name()); err != nil || string(text) != "synced" {
		t.Errorf("synced file contains %q (%v), want what was synced", text, err)
	}
	if text, err := os.ReadFile(lost.Name()); err == nil && len(text) > 0 {
		t.Errorf("a file that was never synced contains %q", text)
	}
}

// TestFreeze_HoldsWriters checks that a write to a frozen disk blocks until the
// thaw.
func TestFreeze_HoldsWriters(t *testing.T) {
	d := newDisk(t, 64<<20)
	f := create(t, filepath.Join(d.Dir, "file"))
	thaw, err := d.Freeze(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer thaw()
	wrote := make(chan error, 1)
	go func() { // ends with the thaw
		_, err := f.WriteString("later")
		wrote <- err
	}()
	select {
	case err := <-wrote:
		t.Errorf("a write to a frozen disk ended: %v", err)
	case <-time.After(200 * time.Millisecond): // that nothing happens cannot be awaited
	}
	if err := thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("after the thaw: %v", err)
	}
	if err := thaw(); err != nil {
		t.Errorf("thawed twice: %v", err)
	}
}

// TestFreeze_TimesOut checks that the watchdog thaws the disk after the limit, and
// that thaw reports it.
func TestFreeze_TimesOut(t *testing.T) {
	d := newDisk(t, 64<<20)
	thaw, err := d.Freeze(100 * time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.Dir, "file"), []byte("waits"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := thaw(); err == nil || !strings.Contains(err.Error(), "before its time") {
		t.Errorf("thaw returned %v", err)
	}
}

func TestFill(t *testing.T) {
	d := newDisk(t, 64<<20)
	const left = 1 << 20
	if err := d.Fill(left); err != nil {
		t.Fatal(err)
	}
	if free, err := d.Available(); err != nil || free > left || free < left/2 {
		t.Errorf("%d bytes are left (%v), want nearly %d", free, err, left)
	}
	big := filepath.Join(d.Dir, "big")
	if err := os.WriteFile(big, make([]byte, 2*left), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("writing more than is left: %v", err)
	}
	os.Remove(big)
	if err := d.FreeSpace(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(big, make([]byte, 2*left), 0o644); err != nil {
		t.Errorf("after the space was freed: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	d := newDisk(t, 64<<20)
	f := create(t, filepath.Join(d.Dir, "file"))
	write(t, f, "before")
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := d.ReadOnly(); err != nil {
		t.Fatal(err)
	}
	_, err := f.WriteString("after")
	if err = errors.Join(err, f.Sync()); err == nil {
		t.Error("a read-only disk accepted a write")
	}
	f.Close()
	if err := errors.Join(d.Cut(), d.Restore()); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(f.Name()); err != nil || string(text) != "before" {
		t.Errorf("after remounting the file contains %q (%v)", text, err)
	}
}

func TestDamage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a", "file")
	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("abcdef"), 0o644)); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(t.TempDir(), "old")
	if err := Replace(old, filepath.Dir(file)); err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, []byte(want)) {
			t.Errorf("the file contains %q (%v), want %q", got, err, want)
		}
	}
	if err := Flip(file, 1, 0x20); err != nil {
		t.Fatal(err)
	}
	check("aBcdef")
	if err := Flip(file, -1, 0x20); err != nil {
		t.Fatal(err)
	}
	check("aBcdeF")
	if err := Truncate(file, 2); err != nil {
		t.Fatal(err)
	}
	check("aBcd")
	if err := Flip(file, 4, 1); err == nil {
		t.Error("flipped a byte beyond the end")
	}
	if err := Replace(filepath.Dir(file), old); err != nil {
		t.Fatal(err)
	}
	check("abcdef")
}
