package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
)

// fullWriter fails after free bytes.
type fullWriter struct{ free int }

func (f *fullWriter) Write(b []byte) (int, error) {
	if f.free -= len(b); f.free < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(b), nil
}

// backupChunks returns the replies of a node that sends size bytes of a backup and
// then fails with err, or ends it if err is nil.
func backupChunks(size int, err error) cannedReplies {
	return cannedReplies{
		"yard.api.v1.backup.begin": `{"session":"s1","node":"n1"}`,
		"yard.api.v1.backup.end":   `{}`,
		"yard.api.v1.backup.read": func(question []byte) ([]byte, error) {
			var q struct{ At int }
			if jsonErr := json.Unmarshal(question, &q); jsonErr != nil {
				return nil, jsonErr
			}
			if q.At >= size {
				return nil, err
			}
			return bytes.Repeat([]byte("x"), min(512<<10, size-q.At)), nil
		},
	}
}

// A backup that cannot be written or is incomplete leaves no file, and ends the
// session at the node.
func TestBackup_Fails(t *testing.T) {
	interrupted := &api.Error{Code: api.CodeUnavailable, Text: "the backup was interrupted: the node stops"}
	for name, c := range map[string]struct {
		size   int
		fails  error
		out    *fullWriter
		want   string
		advice string
	}{
		"a full disk":        {3 << 20, nil, &fullWriter{1 << 20}, "no space left on device", "free disk space"},
		"full at the end":    {1 << 19, nil, &fullWriter{1 << 18}, "no space left on device", "free disk space"},
		"a node that stops":  {3 << 20, interrupted, nil, "no backup was made: the backup was interrupted", "run the command again"},
		"bytes that are not": {3 << 20, nil, nil, "the backup is damaged", "make another backup"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFakeAPI(t, backupChunks(c.size, c.fails))
			dir := t.TempDir()
			file := filepath.Join(dir, "yard.tar")
			var out, errs bytes.Buffer
			streams := Streams{Out: &out, Err: &errs}
			if c.out != nil {
				file, streams.Out = "-", c.out
			}
			if code := Run(t.Context(), []string{"-s", f.url, "backup", file}, streams, Program{}); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if !strings.Contains(errs.String(), c.want) || !strings.Contains(errs.String(), c.advice) {
				t.Errorf("error %q, want %q and %q", &errs, c.want, c.advice)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if asked := f.requests(); asked[len(asked)-1] != `end {"session":"s1"}` {
				t.Errorf("last request %q, want the end of the session", asked[len(asked)-1])
			}
		})
	}
}
