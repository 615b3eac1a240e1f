package embedded

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

// Config configures this node's server and connections.
type Config struct {
	Node             string // member name: ^[a-z0-9][a-z0-9-]*$
	Identity         string // server name, bound to Dir: "<node>-<8 hex>"
	Yard             string // the yard's id; servers of other yards are refused
	Dir              string // directory of the streams' files
	ClientListen     string // host:port for clients; port 0 picks a free one
	RouteListen      string // host:port for routes to other members; "": the node runs alone
	Peers            []Peer // all members, including this one; empty if the node runs alone
	Secret           string // shared secret of the members for routes; "": not required
	InternalPassword string // password of this node's own connections; "": random
	// ClientTLS is required of clients; nil: plain TCP.
	ClientTLS *tls.Config
	// MemberTLS holds the certificates for routes; nil: plain TCP.
	MemberTLS *certs.Store
	// MaxStore is how many bytes streams may use; 0: three quarters of the available disk space, without
	// a share for the index.
	MaxStore int64
	IndexDir string // directory of the index of jobs, on the same disk; "": there is none
	// FixedStore is whether MaxStore was given. [Start] sets it.
	FixedStore bool

	// Users may connect to ClientListen. They are the same on every member. Without
	// users every client is an operator.
	Users []User
	// Anonymous is the role of clients without a user name if there are Users; "":
	// such clients are refused.
	Anonymous Role

	// PublishTimeout is how long a publish is retried before it fails; 0: 1.8 s, so
	// that a node answers its callers within two seconds.
	PublishTimeout time.Duration
}

// Peer is one member of the yard.
type Peer struct {
	Node     string
	Identity string // "" if unknown
	Route    string // host:port
}

// sortedPeers returns peers sorted by name.
func sortedPeers(peers []Peer) []Peer {
	return slices.SortedFunc(slices.Values(peers), func(a, b Peer) int { return strings.Compare(a.Node, b.Node) })
}

var nodeName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

// Clustered reports whether the node has other members.
func (c *Config) Clustered() bool { return c.RouteListen != "" }

// withDefaults returns a validated copy of c with defaults filled in and Peers
// sorted by name.
func (c *Config) withDefaults() (Config, error) {
	d := *c
	d.Peers = sortedPeers(c.Peers)
	if d.Identity == "" {
		d.Identity = d.Node
	}
	if d.ClientListen == "" {
		d.ClientListen = "127.0.0.1:4222"
	}
	if d.PublishTimeout == 0 {
		d.PublishTimeout = 1800 * time.Millisecond
	}
	if err := d.validate(); err != nil {
		return d, err
	}
	if d.FixedStore = d.MaxStore != 0; !d.FixedStore {
		space, err := availableSpace(d.Dir, d.IndexDir)
		if err != nil {
			return d, fmt.Errorf("measure the free space of %s: %w", d.Dir, err)
		}
		if d.IndexDir != "" {
			space -= min(maxIndexShare, space/8)
		}
		d.MaxStore = space / 4 * 3
	}
	return d, nil
}

// maxIndexShare is the most that the default of MaxStore leaves to the index: the default of index.bytes.
const maxIndexShare = 8 << 30

// validate returns an error that names the first invalid field.
func (c *Config) validate() error {
	if !nodeName.MatchString(c.Node) {
		return fmt.Errorf("member name %q: must start with a lower-case letter or digit and hold only those and '-'", c.Node)
	}
	if c.Dir == "" {
		return errors.New("data directory is not given")
	}
	if err := ValidateUsers(c.Users, c.Anonymous); err != nil {
		return err
	}
	if !c.Clustered() {
		return nil
	}
	if c.Yard == "" || strings.ContainsAny(c.Yard, " \t") {
		return fmt.Errorf("yard id %q: must not be empty and must hold no spaces", c.Yard)
	}
	if len(c.Peers) < 2 || len(c.Peers) > subjects.MaxLanes {
		return fmt.Errorf("%d members: a cluster has 3 or 5", len(c.Peers))
	}
	if !slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.Node == c.Node }) {
		return fmt.Errorf("member %q is not among the members %v", c.Node, c.Peers)
	}
	return nil
}

// availableSpace returns the bytes that are free in dir's file system plus those
// that files in dir and beside already use, so that the default of MaxStore does not
// shrink with each restart of a node whose disk fills. beside may be "".
func availableSpace(dir, beside string) (int64, error) {
	if err := os.MkdirAll(dir, durable.DirMode); err != nil {
		return 0, err
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, err
	}
	space := int64(disk.Bavail) * int64(disk.Bsize)
	add := func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if info, err := entry.Info(); err == nil { // otherwise it was removed meanwhile
			space += info.Size()
		}
		return nil
	}
	if err := filepath.WalkDir(dir, add); err != nil {
		return 0, err
	}
	if beside != "" {
		_ = filepath.WalkDir(beside, add) // what cannot be read is left out, as the index is
	}
	return space, nil
}
