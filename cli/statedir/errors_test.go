package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A damaged file is an error that names it, for every operation, and no file is
// overwritten.
func TestDamage(t *testing.T) {
	names := []string{stateFile}
	for _, view := range viewFiles {
		names = append(names, view.name)
	}
	intact := t.TempDir()
	do(t, intact, acquire, queueR1)
	for _, origin := range []string{"ours", "the original's"} {
		for _, name := range names {
			for harm, spoil := range map[string]func(string) string{
				"empty":     func(string) string { return "" },
				"truncated": func(s string) string { return s[:len(s)*2/3] },
				"garbage":   func(s string) string { return "\x00\xff" + s[2:] },
				"a text":    func(string) string { return `"text"` },
				"null":      func(string) string { return "null" },
				"a number":  func(string) string { return "1" },
				"a list":    func(string) string { return `[1]` },
				"an object": func(string) string { return "{}" },
			} {
				if origin != "ours" && name == stateFile {
					continue
				}
				t.Run(fmt.Sprint(origin, " ", name, " ", harm), func(t *testing.T) {
					dir := t.TempDir()
					for other, content := range files(t, intact) {
						if origin == "ours" || other != stateFile {
							write(t, dir, other, content)
						}
					}
					write(t, dir, name, spoil(read(t, dir, name)))
					before := files(t, dir)
					_, execErr := Exec(t.Context(), dir, []byte(queueR2), false)
					_, snapErr := Snapshot(t.Context(), dir)
					for _, err := range []error{execErr, snapErr} {
						var damaged *damagedError
						if !errors.As(err, &damaged) || damaged.File != filepath.Join(dir, name) || !strings.Contains(err.Error(), "; ") {
							t.Errorf("%v", err)
						}
					}
					want(t, "directory", files(t, dir), before)
				})
			}
		}
	}
}

// A missing or outdated view is rewritten; an events.json with other content is
// not.
func TestViews_Rewritten(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, acquire, queueR1)
	good := files(t, dir)
	for _, view := range viewFiles {
		if err := os.Remove(filepath.Join(dir, view.name)); err != nil {
			t.Fatal(err)
		}
	}
	do(t, dir, queueR1) // only rewrites the views
	rewritten := files(t, dir)
	delete(good, stateFile)
	delete(rewritten, stateFile)
	want(t, "views after all were removed", rewritten, good)

	write(t, dir, "backlog.json", `{"pending":7,"notified":0,"delivered":0,"failed":0}`)
	do(t, dir, queueR1)
	want(t, "backlog.json", read(t, dir, "backlog.json"), good["backlog.json"])

	write(t, dir, eventsFile, `[{"event":"SnapshotCaptured"}]`)
	before := files(t, dir)
	if _, err := Exec(t.Context(), dir, []byte(queueR2), false); !errors.Is(err, errChangedOutside) {
		t.Errorf("with another program's events: %v", err)
	}
	want(t, "directory", files(t, dir), before)
}

func TestStateFile_NewerFormat(t *testing.T) {
	dir := t.TempDir()
	do(t, dir, queueR1)
	write(t, dir, stateFile, strings.Replace(read(t, dir, stateFile), `"yardmaster_state":2`, `"yardmaster_state":3`, 1))
	if _, err := Snapshot(t.Context(), dir); !errors.Is(err, errNewerFormat) || !strings.Contains(err.Error(), "run that release") {
		t.Errorf("%v", err)
	}
}

// crashAt calls run with a store that fails before its nth step, as if the process
// were killed there.
func crashAt(t *testing.T, dir string, n int, run func(*store) error) error {
	t.Helper()
	d, err := open(t.Context(), dir, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	d.crashBefore = func(string) bool {
		n--
		return n < 0
	}
	return run(d)
}

// If the process is killed before any step, the directory has the old or the new
// state; the next command succeeds and rewrites outdated views.
func TestCrash(t *testing.T) {
	command := func(line string, compact bool) func(*store) error {
		return func(d *store) error {
			apply, err := parse([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.exec(apply, compact)
			return err
		}
	}
	for _, tt := range []struct {
		name          string
		prepare       func(dir string)
		run           func(*store) error
		before, after []string
	}{
		{
			"exec", func(dir string) { do(t, dir, queueR1) }, command(notify1, false),
			[]string{"DispatchQueued r1"}, []string{"DispatchQueued r1", "DispatchNotified r1"},
		},
		{
			"compact", func(dir string) { do(t, dir, queueR1, queueR2) }, command(failR2, true),
			[]string{"DispatchQueued r1", "DispatchQueued r2"}, []string{"DispatchQueued r1"},
		},
		{
			"init", func(dir string) { do(t, dir, queueR1, acquire) }, (*store).init,
			[]string{"DispatchQueued r1", "AuthorityAcquired"}, nil,
		},
		{
			"init over damage", func(dir string) { do(t, dir, queueR1, acquire); write(t, dir, "replay.json", "?") }, (*store).init,
			nil, nil,
		},
		{
			"taking over", func(dir string) { write(t, dir, eventsFile, `[{"event":"SnapshotCaptured"}]`) }, command(queueR1, false),
			[]string{"SnapshotCaptured"}, []string{"SnapshotCaptured", "DispatchQueued r1"},
		},
	} {
		for n := 0; ; n++ {
			dir := t.TempDir()
			tt.prepare(dir)
			err := crashAt(t, dir, n, tt.run)
			if err != nil && !errors.Is(err, errCrashed) {
				t.Fatalf("%s, step %d: %v", tt.name, n, err)
			}
			_, snapErr := Snapshot(t.Context(), dir)
			var damaged *damagedError
			if tt.name == "init over damage" && errors.As(snapErr, &damaged) && err != nil {
				continue // still damaged
			}
			if snapErr != nil {
				t.Errorf("%s, step %d: %v", tt.name, n, snapErr)
			}
			do(t, dir, capture)
			got := tags(t, dir)
			got = got[:len(got)-1]
			if !slices.Equal(got, tt.after) && (err == nil || !slices.Equal(got, tt.before)) {
				t.Errorf("%s, step %d: %v", tt.name, n, got)
			}
			for name, b := range files(t, dir) { // no view is outdated
				if s, recorded, err := decodeState([]byte(read(t, dir, stateFile))); err != nil || s == nil || recorded.Committed[name] != "" && recorded.Committed[name] != digest([]byte(b)) {
					t.Errorf("%s, step %d: %s is outdated: %v", tt.name, n, name, err)
				}
			}
			if err == nil {
				if n < 5 {
					t.Errorf("%s has %d steps only", tt.name, n)
				}
				break
			}
		}
	}
}
