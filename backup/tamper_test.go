package backup_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/backup"
)

// entry is an entry of the archive.
type entry struct {
	name string
	data []byte
}

func entries(t *testing.T, file []byte) (all []entry) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(file)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entry{h.Name, data})
	}
}

func packed(t *testing.T, all []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	out := tar.NewWriter(&b)
	for _, e := range all {
		err := out.WriteHeader(&tar.Header{Name: e.name, Mode: 0o600, Size: int64(len(e.data))})
		if err == nil {
			_, err = out.Write(e.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func at(all []entry, name string) *entry {
	return &all[slices.IndexFunc(all, func(e entry) bool { return e.name == name })]
}

// summed gives a file another manifest, with its sum.
func summed(all []entry, change func(*backup.Manifest)) []entry {
	var m backup.Manifest
	text := at(all, "manifest.json")
	if err := json.Unmarshal(text.data, &m); err != nil {
		panic(err)
	}
	change(&m)
	text.data, _ = json.Marshal(&m)
	sum := sha256.Sum256(text.data)
	at(all, "manifest.sha256").data = []byte(hex.EncodeToString(sum[:]))
	return all
}

// TestVerify_Tampered checks that entries that were exchanged, removed or rewritten
// are refused, even with correct checksums.
func TestVerify_Tampered(t *testing.T) {
	const lane, events, results = "YARD_JOBS_0/00000001", "YARD_EVENTS.2/00000001", "YARD_RESULTS/00000001"
	whole, other := newFakeBackup(t).file(t), newFakeBackup(t)
	other.drop("YARD_JOBS_0", 1)
	elsewhere := entries(t, other.file(t))
	for name, c := range map[string]struct {
		spoil func([]entry) []entry
		want  string
	}{
		"two parts exchanged": {func(all []entry) []entry {
			at(all, lane).data, at(all, results).data = at(all, results).data, at(all, lane).data
			return all
		}, "has changed"},
		"two names exchanged": {func(all []entry) []entry {
			a, b := at(all, lane), at(all, results)
			a.name, b.name = b.name, a.name
			return all
		}, "has changed"},
		"a part of another backup": {func(all []entry) []entry {
			at(all, lane).data = at(elsewhere, lane).data
			return all
		}, "YARD_JOBS_0 has changed"},
		"another backup's manifest": {func(all []entry) []entry {
			at(all, "manifest.json").data = at(elsewhere, "manifest.json").data
			return all
		}, "does not match its checksum"},
		"another backup's manifest and sum": {func(all []entry) []entry {
			return append(all[:len(all)-2], elsewhere[len(elsewhere)-2:]...)
		}, "YARD_JOBS_0 has changed"},
		"a part left out": {func(all []entry) []entry {
			return slices.DeleteFunc(all, func(e entry) bool { return e.name == events })
		}, "YARD_EVENTS.2 has changed"},
		"a part twice": {func(all []entry) []entry {
			return slices.Insert(all, len(all)-2, *at(all, lane))
		}, "part YARD_JOBS_0 occurs twice"},
		"a piece of it missing": {func(all []entry) []entry {
			at(all, lane).name = "YARD_JOBS_0/00000002"
			return all
		}, "instead of YARD_JOBS_0/00000001"},
		"no ledger": {func(all []entry) []entry { return all[1:] }, "instead of the ledger"},
		"nothing at all": {func(all []entry) []entry {
			return summed(all[len(all)-2:], func(m *backup.Manifest) { *m = backup.Manifest{Format: backup.Format} })
		}, "it contains no ledger"},
		"a stream in the ledger's place": {func(all []entry) []entry {
			return summed(all, func(m *backup.Manifest) { m.Streams[0].Part = m.Ledger })
		}, "YARD_JOBS_0 is missing"},
		"a stream in no part": {func(all []entry) []entry {
			return summed(all, func(m *backup.Manifest) { m.Streams[0].Part = backup.Part{} })
		}, "YARD_JOBS_0 is missing"},
		"a stream twice": {func(all []entry) []entry {
			return summed(all, func(m *backup.Manifest) { m.Streams = append(m.Streams, m.Streams[0]) })
		}, "stream YARD_JOBS_0 occurs twice"},
		"two streams exchanged": {func(all []entry) []entry {
			return summed(all, func(m *backup.Manifest) {
				r := len(m.Streams) - 1
				m.Streams[0].Part, m.Streams[r].Part = m.Streams[r].Part, m.Streams[0].Part
			})
		}, "YARD_JOBS_0 has"},
		"other counts": {func(all []entry) []entry {
			return summed(all, func(m *backup.Manifest) { m.Queues[0].Waiting++ })
		}, "counts in its manifest"},
		"another format": {func(all []entry) []entry {
			return summed(all, func(m *backup.Manifest) { m.Format++ })
		}, "use the release that made it"},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := backup.Verify(bytes.NewReader(packed(t, c.spoil(entries(t, whole)))))
			if err == nil || plan != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := backup.Verify(bytes.NewReader(packed(t, entries(t, whole)))); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}
