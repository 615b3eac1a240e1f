package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yardmaster/cluster"
)

// full takes so many bytes.
type full struct{ room int }

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(b), nil
}

// pieces are a backup of so many bytes, which a node gives or fails at.
func pieces(size int, fails error) answers {
	return answers{
		"yard.api.v1.backup.begin": `{"session":"s1","node":"n1"}`,
		"yard.api.v1.backup.end":   `{}`,
		"yard.api.v1.backup.read": func(question []byte) ([]byte, error) {
			var q struct{ At int }
			if err := json.Unmarshal(question, &q); err != nil {
				return nil, err
			}
			if q.At >= size {
				return nil, fails
			}
			return bytes.Repeat([]byte("x"), min(512<<10, size-q.At)), nil
		},
	}
}

// A backup that cannot be written, or does not come whole, leaves no file; the
// node hears that it is over.
func TestBackup_NotMade(t *testing.T) {
	interrupted := &cluster.APIError{Code: "503", Text: "the backup was interrupted: the node stops"}
	for name, c := range map[string]struct {
		size   int
		fails  error
		out    *full
		want   string
		advice string
	}{
		"a full disk":        {3 << 20, nil, &full{1 << 20}, "no space left on device", "make room"},
		"full at the end":    {1 << 19, nil, &full{1 << 18}, "no space left on device", "make room"},
		"a node that stops":  {3 << 20, interrupted, nil, "the backup is not made: the backup was interrupted", "take it again"},
		"bytes that are not": {3 << 20, nil, nil, "the backup is damaged", "take another backup"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, pieces(c.size, c.fails))
			dir := t.TempDir()
			file := filepath.Join(dir, "yard.tar")
			var out, said bytes.Buffer
			streams := Streams{Out: &out, Err: &said}
			if c.out != nil {
				file, streams.Out = "-", c.out
			}
			if code := Run(t.Context(), []string{"-s", f.url, "backup", file}, streams, Program{}); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(said.String(), c.want) || !strings.Contains(said.String(), c.advice) {
				t.Errorf("said %q, want %q and %q", &said, c.want, c.advice)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if asked := f.questions(); asked[len(asked)-1] != `end {"session":"s1"}` {
				t.Errorf("the last question was %q", asked[len(asked)-1])
			}
		})
	}
}

// While a restore reads what its node need not hear, it asks all the same.
func TestRestore_Attended(t *testing.T) {
	f := startFake(t, answers{"yard.api.v1.restore.wait": `{"session":"s1","node":"n1"}`})
	c, err := cluster.Dial(t.Context(), f.url, cluster.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := &bringing{yard: &yard{Client: c}, session: "s1"} // and asked nothing for long
	in := &attended{strings.NewReader("the parts"), context.Background(), b}
	for range 2 {
		if _, err := in.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
	}
	if asked := f.questions(); len(asked) != 1 || asked[0] != `wait {"session":"s1"}` {
		t.Errorf("asked %q, want one question", asked)
	}
}

// Whoever may not restore hears that, and not that the yard had begun to.
func TestRestore_NotBegun(t *testing.T) {
	for _, err := range []error{
		&cluster.ForbiddenError{Subject: "yard.api.v1.restore.begin"},
		&cluster.APIError{Code: "409", Text: "this yard has accepted jobs"},
	} {
		if !notBegun(fmt.Errorf("request: %w", err)) {
			t.Errorf("%v is taken for a restore that begun", err)
		}
	}
	for _, err := range []error{&cluster.APIError{Code: "503", Text: "no authority"}, context.DeadlineExceeded} {
		if notBegun(err) {
			t.Errorf("after %v it is said that nothing was begun", err)
		}
	}
}
