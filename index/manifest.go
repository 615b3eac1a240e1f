package index

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/internal/durable"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// manifest is what the file of that name has.
type manifest struct {
	Format   int
	Yard     string
	Next     uint64    // number of the next segment
	Segments []string  // names of the files
	Deleted  []string  `json:",omitempty"` // those that have a file of deleted documents
	Spool    uint64    // generation of the first spool to read
	Synced   spoolSize // of the last spool
	Fence    uint64    // see [ledger.Ledger.FenceBase]
	Mark     mark      // how far changes are in the segments
	Rebuild  *rebuild  `json:",omitempty"` // history that is to be read
	Shed     int64     `json:",omitempty"` // see gap
}

// spoolSize is how much of a spool is on the disk for certain.
type spoolSize struct {
	Generation uint64
	Bytes      int64
}

// mark is how far changes were read.
type mark struct {
	ledger.ChangeMark
	Seen uint64 // index of the last entry that documents may have effects of
}

const (
	manifestName   = "manifest.json"
	manifestFormat = 2
)

// readManifest returns the manifest of a directory, zero if it has none.
func readManifest(dir string) (m manifest, err error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return manifest{Format: manifestFormat}, nil
	}
	if err != nil {
		return m, err
	}
	text, sum, _ := strings.Cut(string(data), "\n")
	if sum != manifestSum([]byte(text)) {
		return m, &uselessError{fmt.Errorf("%s: the checksum is not that of its content", manifestName)}
	}
	if err = json.Unmarshal([]byte(text), &m); err == nil && m.Format != manifestFormat {
		err = fmt.Errorf("it has format %d, this build reads %d", m.Format, manifestFormat)
	}
	if err != nil {
		return m, &uselessError{fmt.Errorf("%s: %w", manifestName, err)}
	}
	return m, nil
}

func (m *manifest) write(dir string) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s\n%s", data, manifestSum(data))
	return durable.WriteFile(filepath.Join(dir, manifestName), []byte(text))
}

// manifestSum returns the second line of a manifest: the CRC-32C of the first one.
func manifestSum(text []byte) string {
	return fmt.Sprintf("%08x\n", crc32.Checksum(text, castagnoli))
}

// save writes the manifest and the sets of deleted documents, and deletes spools that are not needed.
func (x *Index) save() error {
	x.mu.Lock()
	m := manifest{Format: manifestFormat, Yard: x.cfg.Yard, Next: x.next, Spool: x.memory.spool, Fence: x.fence, Mark: x.rotated, Shed: x.gap.shed}
	if x.frozen != nil {
		m.Spool = x.frozen.spool
	}
	files := slices.Concat(x.ended, x.live, x.before)
	x.use(files)
	trash := x.trash
	x.trash = nil
	deleted := make(map[string][]byte)
	for _, f := range files {
		m.Segments = append(m.Segments, f.name)
		if f.dirty {
			deleted[f.f.Name()+deletedSuffix] = f.Deleted()
			f.dirty, f.partial = false, true
		}
		if f.partial {
			m.Deleted = append(m.Deleted, f.name)
		}
	}
	var err error
	planned := x.gap.rebuild
	if planned != nil {
		m.Rebuild = &rebuild{From: x.gap.rebuild.From, Until: x.gap.rebuild.Until, Next: x.gap.progress}
	}
	if len(deleted)+len(trash) > 0 || m.Spool != x.saved || m.Rebuild != nil || x.gap.saved { // what replaces documents must not be lost
		err = x.spool.sync()
	}
	m.Synced = spoolSize{x.generation, x.spool.durable}
	x.saved, x.gap.saved = m.Spool, m.Rebuild != nil
	x.mu.Unlock()
	defer x.release(files)
	if err != nil {
		return err
	}
	for path, set := range deleted {
		if err := durable.WriteFile(path, set); err != nil {
			return err
		}
	}
	if err := m.write(x.cfg.Dir); err != nil {
		return err
	}
	x.mu.Lock()
	x.gap.unsaved = x.gap.unsaved && x.gap.rebuild != planned
	x.mu.Unlock()
	x.empty(trash)
	for generation := m.Spool; generation > 0; generation-- {
		if err := os.Remove(spoolName(x.cfg.Dir, generation-1)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
	}
	return nil
}
