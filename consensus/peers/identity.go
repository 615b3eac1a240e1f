package peers

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

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

const (
	identityFile    = "node.json"
	lockFile        = "node.lock"
	identityVersion = 1
)

// ErrInUse is returned when another process uses the data directory.
var ErrInUse = errors.New("data directory is in use by another process")

// MemberID identifies a member of a cluster: its name, bound to one data
// directory.
type MemberID struct {
	Node string `json:"node"`
	Dir  string `json:"dir"` // 8 random hex digits, generated with the directory
}

// ServerID returns the member's name in Raft and in JetStream.
func (m MemberID) ServerID() string { return m.Node + "-" + m.Dir }

// NodeOf returns the member's name in a [MemberID.ServerID].
func NodeOf(id string) string {
	if i := strings.LastIndexByte(id, '-'); i > 0 {
		return id[:i]
	}
	return id
}

// Identity is the identity of the node that a data directory belongs to. It
// holds the directory's lock and the raft port until Close.
type Identity struct {
	MemberID
	Yard             string     // id of the cluster that this node belongs to
	Incarnation      uint64     // increases with every start
	BootstrapMembers []MemberID // the members that formed the cluster, sorted by name; Peers returns the present ones

	path     string
	lock     *os.File
	listener *PeerListener

	mu     crash.Mutex
	record identityRecord
}

// identityRecord is the content of the identity file, as JSON.
type identityRecord struct {
	Version          int        `json:"version"`
	Node             string     `json:"node"`
	Dir              string     `json:"dir"`
	Yard             string     `json:"yard"` // name of the cluster
	Incarnation      uint64     `json:"incarnation"`
	YardID           string     `json:"yard_id,omitempty"` // "": not formed yet
	BootstrapMembers []MemberID `json:"roster,omitempty"`
	// Bootstrapped: Raft's files were created or, for an added member, its
	// votes count. From then on missing files are a loss of data, not a fresh
	// start.
	Bootstrapped bool       `json:"bootstrapped,omitempty"`
	Membership   Membership `json:"roll,omitzero"`
	JoinRevision uint64     `json:"since,omitempty"` // of this member, see [Peer]
	Removed      bool       `json:"gone,omitempty"`  // it was removed from the cluster
}

// openIdentity locks dir and reads its identity, or creates one in an empty
// directory.
func openIdentity(dir, yard, node string) (*Identity, error) {
	if err := os.MkdirAll(dir, durable.DirMode); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if err := durable.Protect(dir); err != nil {
		return nil, fmt.Errorf("exclude other users of the host from the data directory: %w", err)
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

// lockDir locks a data directory until the returned file is closed. It returns
// [ErrInUse] if another process has locked it.
func lockDir(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, durable.FileMode)
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

// load reads the identity file of a data directory, or creates the identity of an
// unused one, and stores it with the next incarnation. yard and node are the names in
// the configuration, which must be those in the file.
func (i *Identity) load(dir, yard, node string) error {
	raw, err := os.ReadFile(i.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Join(dir, "raft")); err == nil {
			return fmt.Errorf("%s is missing although raft's files are there: restore the directory as a whole, or empty it and replace the member", i.path)
		}
		i.record = identityRecord{Version: identityVersion, Node: node, Yard: yard, Dir: newDirID()}
	case err != nil:
		return fmt.Errorf("read identity: %w", err)
	default:
		if err := json.Unmarshal(raw, &i.record); err != nil {
			return fmt.Errorf("identity %s is damaged: %w", i.path, err)
		}
		if err := i.record.validate(yard, node); err != nil {
			return fmt.Errorf("identity %s: %w", i.path, err)
		}
	}
	i.record.Incarnation++
	if err := i.save(); err != nil {
		return err
	}
	i.copyRecord()
	return nil
}

// validate returns an error unless this program can use the record for a node and a yard
// with these names.
func (r *identityRecord) validate(yard, node string) error {
	switch {
	case r.Version != identityVersion:
		return fmt.Errorf("has format %d, this program knows %d", r.Version, identityVersion)
	case r.Node != node:
		return fmt.Errorf("the directory belongs to node %q, not %q: start it under that name or give this node its own directory", r.Node, node)
	case r.Yard != yard:
		return fmt.Errorf("the directory belongs to yard %q, not %q", r.Yard, yard)
	case r.YardID != "" && yardID(r.Yard, r.BootstrapMembers) != r.YardID:
		return errors.New("bootstrap members and yard id do not match: the file was changed")
	}
	return nil
}

// bind records on disk to which cluster the data directory belongs: the one that
// members formed, which also determines its id. membership is the present list of
// members if this node joins a cluster that has one, else zero. A node in that list
// starts the incarnations that its join revision reserves for it. If the file cannot be
// written, the identity is unchanged.
func (i *Identity) bind(members []MemberID, membership Membership) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	previous := i.record
	i.record.BootstrapMembers, i.record.YardID, i.record.Membership = members, yardID(i.record.Yard, members), membership
	for _, p := range membership.Peers {
		if p.MemberID == i.MemberID && p.JoinRevision > 0 {
			i.record.JoinRevision, i.record.Incarnation = p.JoinRevision, p.JoinRevision<<incarnationBits+1
		}
	}
	if err := i.save(); err != nil {
		i.record = previous
		return err
	}
	i.copyRecord()
	return nil
}

// Bootstrapped reports whether Raft's files were ever created in this
// directory.
func (i *Identity) Bootstrapped() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record.Bootstrapped
}

// MarkBootstrapped records on disk that Raft's files were created.
func (i *Identity) MarkBootstrapped() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.record.Bootstrapped {
		return nil
	}
	i.record.Bootstrapped = true
	return i.save()
}

// Listener returns the raft port, which [Identify] has opened, or nil for a single
// node without one.
func (i *Identity) Listener() *PeerListener { return i.listener }

// Close closes the raft port and unlocks the data directory. It may be called more
// than once.
func (i *Identity) Close() error {
	var err error
	if i.listener != nil {
		err = i.listener.Close()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.lock != nil {
		err = errors.Join(err, i.lock.Close()) // releases the flock
		i.lock = nil
	}
	return err
}

// copyRecord copies the record into the exported fields.
func (i *Identity) copyRecord() {
	i.MemberID = MemberID{Node: i.record.Node, Dir: i.record.Dir}
	i.Yard, i.BootstrapMembers, i.Incarnation = i.record.YardID, i.record.BootstrapMembers, i.record.Incarnation
}

// save replaces the file atomically, so that after a power loss it has the old
// or the new content.
func (i *Identity) save() error {
	raw, err := json.MarshalIndent(i.record, "", "  ")
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	if err := durable.WriteFile(i.path, append(raw, '\n')); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

// yardID returns the id of a cluster: a hash of its name and bootstrap members.
func yardID(yard string, members []MemberID) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", yard)
	for _, m := range members {
		fmt.Fprintf(h, "\n%q %q", m.Node, m.Dir)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func sortMembers(ids []MemberID) []MemberID {
	slices.SortFunc(ids, func(a, b MemberID) int { return strings.Compare(a.Node, b.Node) })
	return ids
}

func newDirID() string {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
