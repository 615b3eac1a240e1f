package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
)

// Config is the configuration file of one node. Every key has a default: a node
// without a file is a cluster of one.
type Config struct {
	Node      Node      `toml:"node"`
	NATS      NATS      `toml:"nats"`
	HTTP      HTTP      `toml:"http"`
	Raft      Raft      `toml:"raft"`
	Cluster   Cluster   `toml:"cluster"`
	Scheduler Scheduler `toml:"scheduler"`
	Disk      Disk      `toml:"disk"`

	// The Overhop edge, with the tables and keys of Overhop.
	edge.Config
	// The RRQ runner pools, with the tables and keys of RRQ.
	RRQ runnerpool.Config `toml:"rrq"`
}

// Node is the identity of the node, its data directory and its log.
type Node struct {
	// Name of the member: lower-case letters, digits and '-', 1 to 63 bytes.
	// Default "local". It belongs to DataDir from the first start on.
	Name string `toml:"name"`
	// DataDir is the directory of all data of the node. Default "yardmaster-data".
	DataDir string `toml:"data_dir"`
	// LogLevel is "debug", "info", "warn" or "error". Default "info".
	LogLevel string `toml:"log_level"`
	// LogFormat is "text" or "json". Default "text".
	LogFormat string `toml:"log_format"`
}

// NATS is the embedded NATS server.
type NATS struct {
	// Listen is host:port for NATS clients; port 0 picks one. Default
	// "127.0.0.1:4222".
	Listen string `toml:"listen"`
	// RouteListen is host:port for the other members; cluster mode only.
	// Default: this member's route address.
	RouteListen string `toml:"route_listen"`
	// MaxStore is how many bytes the streams may fill, 0 or at least
	// 268435456. Default 0: three quarters of the disk's free space.
	MaxStore int64 `toml:"max_store_bytes"`
	// Anonymous is the role of clients without a user name if Users is set.
	// Default "": they are rejected.
	Anonymous string `toml:"anonymous"`
	// Users may connect; the same on every member. Default: none, and every client
	// is an operator.
	Users []User `toml:"users"`
	// TLS names the certificate files. NATS clients must then use TLS. Default: no
	// TLS.
	TLS edge.TLSConfig `toml:"tls"`
}

// HTTP is the HTTP listener.
type HTTP struct {
	// Listen is host:port for HTTP clients; port 0 picks one, "off" opens none.
	// Default "127.0.0.1:4280".
	Listen string `toml:"listen"`
	// Token is the bearer token, 1 to 256 bytes, of requests for anything but the
	// health of the node. Default "": no token is required.
	Token edge.Secret `toml:"token"`
	// TLS names the certificate files. HTTP clients must then use TLS. Default: no
	// TLS.
	TLS edge.TLSConfig `toml:"tls"`
}

// Off reports whether the HTTP listener is disabled.
func (c HTTP) Off() bool { return c.Listen == "off" }

// validate checks a configuration whose defaults are set.
func (c HTTP) validate() error {
	if len(c.Token) > 256 || strings.ContainsFunc(string(c.Token), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("http.token must be 1 to 256 visible ASCII characters without spaces, or empty to ask for none; clients could not send it")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil && !c.Off() {
		return fmt.Errorf("http.listen is %q; must be host:port, such as 127.0.0.1:4280, or off", c.Listen)
	}
	return validateTLS("http.tls", c.TLS)
}

// Raft is the Raft port and log.
type Raft struct {
	// Listen is host:port for the other members; cluster mode only. Default:
	// this member's raft address.
	Listen string `toml:"listen"`
	// SnapshotBytes is the size of committed entries after which the node takes a
	// snapshot of the ledger and truncates the log; at least 64 KiB. Default 64 MiB.
	SnapshotBytes int64 `toml:"snapshot_bytes"`
}

func (c Raft) validate() error {
	if c.SnapshotBytes != 0 && c.SnapshotBytes < 64<<10 {
		return fmt.Errorf("raft.snapshot_bytes is %d; must be at least %d", c.SnapshotBytes, 64<<10)
	}
	return nil
}

// Cluster declares the members. Without members the node is a cluster of one.
type Cluster struct {
	// Name of the cluster, the same on every member. Default "yard".
	Name string `toml:"name"`
	// Secret is the password of NATS routes; the same on every member. Default "":
	// no password is required.
	Secret string `toml:"secret"`
	// TLS names the certificate files with which members authenticate each other.
	// Default: no TLS between members.
	TLS MemberTLS `toml:"tls"`
	// Members lists all members, this one included: 3 to 5. A node uses it to find
	// the others; once the cluster has formed, the ledger determines its members.
	Members []Member `toml:"members"`
}

// Member is one member with the addresses at which the others reach it.
type Member struct {
	// Name of the member.
	Name string `toml:"name"`
	// Route is its NATS route address, host:port.
	Route string `toml:"route"`
	// Raft is its Raft address, host:port.
	Raft string `toml:"raft"`
}

// Scheduler holds the defaults and rules of the authority; the same on every
// member.
type Scheduler struct {
	// CreateQueues lets a job of an unknown queue create it, except over
	// Overhop. Default true.
	CreateQueues *bool `toml:"create_queues"`
	// DefaultTimeout is the hard limit of an attempt whose job names none, 1s
	// to 10 years. Default 5m, or the value of [rrq].
	DefaultTimeout time.Duration `toml:"default_timeout"`
	// MaxAttempts is the total attempts of a job that names none, 1 to 1000.
	// Default 5, or the value of [rrq].
	MaxAttempts uint32 `toml:"max_attempts"`
	// RetryBase is the delay after the first failed attempt; it doubles with
	// each. 1ms to 1h. Default 5s, or the value of [rrq].
	RetryBase time.Duration `toml:"retry_base"`
	// RetryMax is the longest delay, RetryBase to 30 days. Default 1h, or the
	// value of [rrq].
	RetryMax time.Duration `toml:"retry_max"`
	// ConsistencyCheckInterval is how often all members compare the hashes of their
	// ledgers, 1s to 24h. Default 5m.
	ConsistencyCheckInterval time.Duration `toml:"prove_every"`
}

// Load reads a configuration file ("" for none), applies the environment, which takes
// precedence, sets the defaults and validates the result.
func Load(path string) (Config, error) {
	var c Config
	c.Server.Port = edge.DefaultPort // distinguishes an explicit 0 from an absent key
	if path != "" {
		meta, err := toml.DecodeFile(path, &c)
		if err != nil {
			return Config{}, fmt.Errorf("config %s: %w", path, decodeError(err, &meta))
		}
		unknown, ignored := unknownKeys(meta.Undecoded())
		if c.RRQ.Ignored = ignored; unknown != "" {
			return Config{}, fmt.Errorf("config %s: %s; see docs/reference/config.md for the keys", path, unknown)
		}
		if err := checkTables(&meta); err != nil {
			return Config{}, fmt.Errorf("config %s: %w", path, err)
		}
		if err := c.RRQ.ValidateExplicit(func(runner, key string) bool { return meta.IsDefined("rrq", "runners", runner, key) }); err != nil {
			return Config{}, fmt.Errorf("config %s: %w", path, err)
		}
	}
	if err := checkEnvironment(os.Environ()); err != nil {
		return Config{}, err
	}
	c.RRQ.Ignored = append(c.RRQ.Ignored, retiredVariables(os.LookupEnv)...)
	if err := fromEnvironment(&c, os.LookupEnv); err != nil {
		return Config{}, err
	}
	if c.Server.Port == 0 {
		c.Server.Port = -1 // any free port, which every other listener writes as 0
	}
	c = c.WithDefaults()
	return c, c.Validate()
}

// WithDefaults returns c with the default of every key that is not set.
func (c Config) WithDefaults() Config {
	setDefault(&c.Node.Name, "local")
	setDefault(&c.Node.DataDir, "yardmaster-data")
	setDefault(&c.Node.LogLevel, "info")
	setDefault(&c.Node.LogFormat, "text")
	setDefault(&c.NATS.Listen, "127.0.0.1:4222")
	setDefault(&c.HTTP.Listen, "127.0.0.1:4280")
	setDefault(&c.Cluster.Name, "yard")
	c.Disk.fill()
	if me := c.Self(); me != nil {
		setDefault(&c.NATS.RouteListen, me.Route)
		setDefault(&c.Raft.Listen, me.Raft)
	}
	if c.Scheduler.CreateQueues == nil {
		yes := true
		c.Scheduler.CreateQueues = &yes
	}
	policy := c.RRQ.Policy(job.DefaultPolicy)
	setDefault(&c.Scheduler.MaxAttempts, policy.MaxAttempts)
	setDefault(&c.Scheduler.ConsistencyCheckInterval, 5*time.Minute)
	setDefault(&c.Scheduler.RetryBase, policy.BaseDelay)
	setDefault(&c.Scheduler.RetryMax, policy.MaxDelay)
	timeout := 5 * time.Minute
	if c.RRQ.DefaultTimeout > 0 {
		timeout = time.Duration(c.RRQ.DefaultTimeout * float64(time.Second))
	}
	setDefault(&c.Scheduler.DefaultTimeout, timeout)
	c.Config = c.Config.WithDefaults()
	c.Config.Node = c.Node.Name
	c.RRQ.Dir = c.Node.DataDir
	return c
}

// setDefault sets field to value if it is zero.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Self returns this node's entry among the members, or nil in a cluster of one.
func (c *Config) Self() *Member {
	for i := range c.Cluster.Members {
		if c.Cluster.Members[i].Name == c.Node.Name {
			return &c.Cluster.Members[i]
		}
	}
	return nil
}

// Clustered reports whether members are declared.
func (c *Config) Clustered() bool { return len(c.Cluster.Members) > 0 }

// MemberNames returns the names of all members, sorted; only this node's in a cluster of
// one.
func (c *Config) MemberNames() []string {
	if !c.Clustered() {
		return []string{c.Node.Name}
	}
	names := make([]string, len(c.Cluster.Members))
	for i, m := range c.Cluster.Members {
		names[i] = m.Name
	}
	slices.Sort(names)
	return names
}

var memberName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate checks a configuration whose defaults are set. The error names the key, what
// is wrong with it, and which values are valid.
func (c *Config) Validate() error {
	if !memberName.MatchString(c.Node.Name) {
		return fmt.Errorf("node.name is %q; must be 1 to 63 lower-case letters, digits and '-', with no '-' at its ends", c.Node.Name)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Node.LogLevel) {
		return fmt.Errorf("node.log_level is %q; must be debug, info, warn or error", c.Node.LogLevel)
	}
	if !slices.Contains([]string{"text", "json"}, c.Node.LogFormat) {
		return fmt.Errorf("node.log_format is %q; must be text or json", c.Node.LogFormat)
	}
	if err := CheckAddress("nats.listen", c.NATS.Listen); err != nil {
		return err
	}
	if err := errors.Join(validateTLS("nats.tls", c.NATS.TLS), c.HTTP.validate(), c.Cluster.TLS.validate()); err != nil {
		return err
	}
	if err := c.Raft.validate(); err != nil {
		return err
	}
	if _, err := c.NATS.ServerUsers(); err != nil {
		return fmt.Errorf("nats.users: %w", err)
	}
	if c.NATS.MaxStore != 0 && c.NATS.MaxStore < 256<<20 {
		return fmt.Errorf("nats.max_store_bytes is %d; must be 0 or at least %d", c.NATS.MaxStore, 256<<20)
	}
	s := c.Scheduler
	for _, d := range []struct {
		key             string
		value, min, max time.Duration
	}{
		{"scheduler.default_timeout", s.DefaultTimeout, time.Second, job.MaxDuration},
		{"scheduler.retry_base", s.RetryBase, time.Millisecond, time.Hour},
		{"scheduler.prove_every", s.ConsistencyCheckInterval, time.Second, 24 * time.Hour},
		{"scheduler.retry_max", s.RetryMax, s.RetryBase, 30 * 24 * time.Hour},
	} {
		if d.value < d.min || d.value > d.max {
			return fmt.Errorf("%s is %s; must be %s to %s", d.key, d.value, d.min, d.max)
		}
	}
	if s.MaxAttempts < 1 || s.MaxAttempts > 1000 {
		return fmt.Errorf("scheduler.max_attempts is %d; must be 1 to 1000", s.MaxAttempts)
	}
	if err := c.Disk.validate(); err != nil {
		return err
	}
	if err := c.Config.Validate(); err != nil {
		return err
	}
	if err := c.RRQ.Validate(); err != nil {
		return fmt.Errorf("rrq: %w", err)
	}
	if !c.Clustered() {
		if err := c.RRQ.ValidateStandalone(); err != nil {
			return fmt.Errorf("rrq: %w", err)
		}
	}
	if _, err := c.Crons(); err != nil {
		return err
	}
	return c.validateMembers()
}

func (c *Config) validateMembers() error {
	if !c.Clustered() {
		return nil
	}
	if n := len(c.Cluster.Members); n < ledger.MinMembers || n > ledger.MaxMembers {
		return fmt.Errorf("cluster.members has %d members; must be %d to %d (or none, for a single node)", n, ledger.MinMembers, ledger.MaxMembers)
	}
	if c.Self() == nil {
		return fmt.Errorf("cluster.members does not name this node, %q; every member lists all members, itself included", c.Node.Name)
	}
	seen := map[string]bool{}
	for _, m := range c.Cluster.Members {
		if !memberName.MatchString(m.Name) {
			return fmt.Errorf("cluster.members names %q; a name is 1 to 63 lower-case letters, digits and '-', with no '-' at its ends", m.Name)
		}
		if seen[m.Name] {
			return fmt.Errorf("cluster.members names %q twice", m.Name)
		}
		seen[m.Name] = true
		for _, a := range []struct{ key, value string }{{"route", m.Route}, {"raft", m.Raft}} {
			if err := CheckAddress("cluster.members "+m.Name+" "+a.key, a.value); err != nil {
				return err
			}
		}
	}
	return nil
}

func CheckAddress(key, value string) error {
	if _, _, err := net.SplitHostPort(value); err != nil {
		return fmt.Errorf("%s is %q; must be host:port, such as 127.0.0.1:4222", key, value)
	}
	return nil
}

// EdgeAddress returns the address at which clients of other nodes reach this node's
// edge, or "" if it is not known, for an edge that listens on listener. If that is all
// interfaces, the host is the one of this member's route address.
func (c *Config) EdgeAddress(listener string) string {
	server, me := c.Server, c.Self()
	_, port, err := net.SplitHostPort(listener)
	switch {
	case server.Advertise != "":
		return server.Advertise
	case err != nil:
		return ""
	case !server.IsWildcard():
		return net.JoinHostPort(server.Host, port)
	case me != nil:
		host, _, _ := net.SplitHostPort(me.Route)
		return net.JoinHostPort(host, port)
	}
	return ""
}
