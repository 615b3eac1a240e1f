package roster

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	identityFile    = "node.json"
	lockFile        = "node.lock"
	identityVersion = 1
)

// ErrInUse says that another process works in the data directory.
var ErrInUse = errors.New("data directory is in use by another process")

// Seat is a member's place in a yard: its name, bound to one data directory.
type Seat struct {
	Node string `json:"node"`
	Dir  string `json:"dir"` // 8 hex digits, random, made with the directory
}

// ID is the seat's name in raft and in JetStream.
func (s Seat) ID() string { return s.Node + "-" + s.Dir }

// NodeOf gives the member's name of a [Seat.ID].
func NodeOf(id string) string {
	if i := strings.LastIndexByte(id, '-'); i > 0 {
		return id[:i]
	}
	return id
}

// Identity is what a data directory knows of its node. It holds the
// directory's lock and the raft port until Close.
type Identity struct {
	Seat
	Yard        string // id of the yard this node belongs to
	Incarnation uint64 // grows with every start
	Roster      []Seat // of the forming, sorted by name: who they are now, Peers tells

	path string
	lock *os.File
	door *Door

	mu   sync.Mutex
	file record
}

// record is the JSON of the identity file.
type record struct {
	Version     int    `json:"version"`
	Node        string `json:"node"`
	Dir         string `json:"dir"`
	Yard        string `json:"yard"` // as people call it
	Incarnation uint64 `json:"incarnation"`
	YardID      string `json:"yard_id,omitempty"` // "": not formed yet
	Roster      []Seat `json:"roster,omitempty"`
	// Bootstrapped: raft's own files were begun, or for a newcomer, its votes
	// count. From then on their absence is a loss, not a fresh start.
	Bootstrapped bool   `json:"bootstrapped,omitempty"`
	Roll         Roll   `json:"roll,omitzero"`
	Since        uint64 `json:"since,omitempty"` // of this seat, see [Peer]
	Gone         bool   `json:"gone,omitempty"`  // it was taken out of the yard
}

// openIdentity locks dir and reads who lives there, or settles a new node in
// an empty one.
func openIdentity(dir, yard, node string) (*Identity, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	i := &Identity{path: filepath.Join(dir, identityFile), lock: lock}
	if err := i.load(dir, yard, node); err != nil {
		lock.Close()
		return nil, err
	}
	return i, nil
}

func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", dir, ErrInUse)
		}
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return lock, nil
}

func (i *Identity) load(dir, yard, node string) error {
	raw, err := os.ReadFile(i.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Join(dir, "raft")); err == nil {
			return fmt.Errorf("%s is missing although raft's files are there: restore the directory as a whole, or empty it and replace the member", i.path)
		}
		i.file = record{Version: identityVersion, Node: node, Yard: yard, Dir: newDirID()}
	case err != nil:
		return fmt.Errorf("read identity: %w", err)
	default:
		if err := json.Unmarshal(raw, &i.file); err != nil {
			return fmt.Errorf("identity %s is damaged: %w", i.path, err)
		}
		if err := i.file.fits(yard, node); err != nil {
			return fmt.Errorf("identity %s: %w", i.path, err)
		}
	}
	i.file.Incarnation++
	if err := i.save(); err != nil {
		return err
	}
	i.mirror()
	return nil
}

func (r *record) fits(yard, node string) error {
	switch {
	case r.Version != identityVersion:
		return fmt.Errorf("has format %d, this program knows %d", r.Version, identityVersion)
	case r.Node != node:
		return fmt.Errorf("the directory belongs to node %q, not %q: start it under that name or give this node its own directory", r.Node, node)
	case r.Yard != yard:
		return fmt.Errorf("the directory belongs to yard %q, not %q", r.Yard, yard)
	case r.YardID != "" && yardID(r.Yard, r.Roster) != r.YardID:
		return errors.New("roster and yard id do not match: the file was changed")
	}
	return nil
}

// form binds the directory to its yard, on disk first. Who comes into a yard
// that has a roll takes it over.
func (i *Identity) form(founders []Seat, roll Roll) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.file
	i.file.Roster, i.file.YardID, i.file.Roll = founders, yardID(i.file.Yard, founders), roll
	for _, p := range roll.Peers {
		if p.Seat == i.Seat && p.Since > 0 {
			i.file.Since, i.file.Incarnation = p.Since, p.Since<<sinceBits+1
		}
	}
	if err := i.save(); err != nil {
		i.file = before
		return err
	}
	i.mirror()
	return nil
}

// Bootstrapped tells whether raft's files were ever begun in this directory.
func (i *Identity) Bootstrapped() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.file.Bootstrapped
}

// MarkBootstrapped remembers that raft's files were begun.
func (i *Identity) MarkBootstrapped() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.file.Bootstrapped {
		return nil
	}
	i.file.Bootstrapped = true
	return i.save()
}

// Door is the raft port, open since the forming; nil for a node alone that
// listens nowhere.
func (i *Identity) Door() *Door { return i.door }

// Close gives the port and the directory free. It is safe to call again.
func (i *Identity) Close() error {
	var err error
	if i.door != nil {
		err = i.door.Close()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lock != nil {
		err = errors.Join(err, i.lock.Close()) // ends the flock
		i.lock = nil
	}
	return err
}

// mirror copies the file's facts to where callers read them.
func (i *Identity) mirror() {
	i.Seat = Seat{Node: i.file.Node, Dir: i.file.Dir}
	i.Yard, i.Roster, i.Incarnation = i.file.YardID, i.file.Roster, i.file.Incarnation
}

// save writes the file so that a power loss leaves the old or the new one.
func (i *Identity) save() error {
	raw, err := json.MarshalIndent(i.file, "", "  ")
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	if err := writeDurably(i.path, append(raw, '\n')); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

func writeDurably(path string, raw []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// yardID names a yard by who formed it: equal rosters, equal id.
func yardID(yard string, roster []Seat) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", yard)
	for _, s := range roster {
		fmt.Fprintf(h, "\n%q %q", s.Node, s.Dir)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func sortSeats(seats []Seat) []Seat {
	slices.SortFunc(seats, func(a, b Seat) int { return strings.Compare(a.Node, b.Node) })
	return seats
}

func newDirID() string {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
