package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// Format is the version of the file format.
const Format = 1

// Names in a file.
const (
	LedgerPart   = "ledger"
	manifestName = "manifest.json"
	checksumName = "manifest.sha256"
)

// ErrDamaged is wrapped by every error about a file whose content is not what was
// written.
var ErrDamaged = errors.New("the backup is damaged")

// damaged returns an error that wraps [ErrDamaged] and says what is wrong.
func damaged(format string, v ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, v...))
}

// Manifest describes the content of a file.
type Manifest struct {
	Format  int       `json:"format"`
	Version string    `json:"version"` // version of the program that wrote it
	Yard    string    `json:"yard"`
	Node    string    `json:"node"` // node that wrote it
	Members []string  `json:"members"`
	Started time.Time `json:"begun"`
	Ended   time.Time `json:"ended"`

	Index      uint64            `json:"index"` // of the ledger's last entry
	At         string            `json:"at"`    // the ledger's time
	Epoch      uint64            `json:"epoch"`
	LastEvent  uint64            `json:"last_event"`
	LastResult uint64            `json:"last_result"`
	LastDead   uint64            `json:"last_dead_letter"`
	Ledger     Part              `json:"ledger"` // its checksum is the ledger's hash
	Queues     []api.BackupQueue `json:"queues"`
	Crons      int               `json:"crons"`

	Streams []Stream `json:"streams"`
}

// Part describes a part of a file: the ledger, or the archive of a stream.
type Part struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Stream is the archive of a stream.
type Stream struct {
	Part
	Stream   string `json:"stream"`
	Identity string `json:"identity,omitempty"` // of a lane
	First    uint64 `json:"first"`
	Last     uint64 `json:"last"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Size returns the size of all parts in bytes.
func (m *Manifest) Size() int64 {
	n := m.Ledger.Size
	for i := range m.Streams {
		n += m.Streams[i].Size
	}
	return n
}

// Stream returns the archive of a stream, or nil.
func (m *Manifest) Stream(name string) *Stream {
	for i := range m.Streams {
		if m.Streams[i].Stream == name {
			return &m.Streams[i]
		}
	}
	return nil
}

// checksum returns the SHA-256 of b in hex.
func checksum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}
