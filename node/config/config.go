package config

import (
	"cmp"
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
	"github.com/yardmaster-dev/yardmaster/internal/duration"
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
	Retention Retention `toml:"retention"`

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
	// 268435456. Default 0: three quarters of the disk's free space,
	// without a share for the index.
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
	// Token is the bearer token of an operator, 1 to 256 bytes. Default "": none.
	// Without it and Users no token is required.
	Token edge.Secret `toml:"token"`
	// Anonymous is the role of requests without a token if Token or Users are set.
	// Default "": they are rejected, except for the health of the node.
	Anonymous string `toml:"anonymous"`
	// Users have tokens and roles; the same on every member. Default: none.
	Users []HTTPUser `toml:"users"`
	// TLS names the certificate files. HTTP clients must then use TLS. Default: no
	// TLS.
	TLS edge.TLSConfig `toml:"tls"`
}

// Off reports whether the HTTP listener is disabled.
func (c HTTP) Off() bool { return c.Listen == "off" }

// validate checks a configuration whose defaults are set.
func (c HTTP) validate() error {
	if _, err := c.ServerUsers(); err != nil {
		return fmt.Errorf("http.users: %w", err)
	}
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
	// snapshot of the ledger and truncates the log, if twice the size of the last
	// snapshot is not more; at least 64 KiB. Default 64 MiB.
	SnapshotBytes int64 `toml:"snapshot_bytes"`
}

// minSnapshotBytes is the smallest size of committed entries that may cause a snapshot.
const minSnapshotBytes = 64 << 10

func (c Raft) validate() error {
	if c.SnapshotBytes != 0 && c.SnapshotBytes < minSnapshotBytes {
		return fmt.Errorf("raft.snapshot_bytes is %d; must be at least %d", c.SnapshotBytes, minSnapshotBytes)
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
	// NewQueuesPerMinute is how many queues each user may make within a minute at one
	// node, 1 to 10000; an admin, and everyone without users, may make any number.
	// Default 100.
	NewQueuesPerMinute int `toml:"new_queues_per_minute"`
	// DefaultTimeout is the hard limit of an attempt whose job names none, 1s
	// to 10 years. Default 5m, or the value of [rrq].
	DefaultTimeout time.Duration `toml:"default_timeout"`
	// MaxAttempts is the total attempts of a job that names none, 1 to 1000.
	// Default 5, or the value of [rrq].
	MaxAttempts uint32 `toml:"max_attempts"`
	// RetryBase is the delay after the first failed attempt; it doubles with
	// each. 1ms to 1h. Default 5s, or the value of [rrq].
	RetryBase time.Duration `toml:"retry_base"`
	// RetryMax is the longest delay without jitter, RetryBase to 30 days. Default
	// 1h, or the value of [rrq].
	RetryMax time.Duration `toml:"retry_max"`
	// RetryJitter is by how many percent a delay is lengthened at most, 0 to 100.
	// Default 50.
	RetryJitter *uint8 `toml:"retry_jitter"`
	// MaxErrorBytes is how many bytes are kept of the error of an attempt, with its message and details,
	// such as a traceback: 4096 to 65536. Default 16384.
	MaxErrorBytes int `toml:"max_error_bytes"`
	// ConsistencyCheckInterval is how often all members compare the hashes of their
	// ledgers, 1s to 24h. Default 5m.
	ConsistencyCheckInterval time.Duration `toml:"prove_every"`
}

// Load reads a configuration file ("" for none), applies the environment, which takes
// precedence, sets the defaults and validates the result.
func Load(path string) (Config, error) {
	var c Config
	var meta toml.MetaData
	c.Server.Port = edge.DefaultPort // distinguishes an explicit 0 from an absent key
	if path != "" {
		var err error
		if meta, err = decodeFile(path, &c); err != nil {
			return Config{}, fmt.Errorf("config %s: %w", path, err)
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
	environment, services := splitServiceVariables(os.Environ())
	if err := checkEnvironment(environment); err != nil {
		return Config{}, err
	}
	lookup := lookupIn(environment)
	c.RRQ.Ignored = append(c.RRQ.Ignored, retiredVariables(lookup)...)
	for _, name := range services {
		c.RRQ.Ignored = append(c.RRQ.Ignored, name+" (Kubernetes sets it for a Service; enableServiceLinks: false in the pod avoids it)")
	}
	if err := applyEnvironment(&c, lookup); err != nil {
		return Config{}, err
	}
	err := c.checkZeroes(func(v variable) bool {
		_, isSet := lookup(v.name)
		return isSet || meta.IsDefined(v.table, v.key)
	})
	if err != nil {
		return Config{}, err
	}
	if c.Server.Port == 0 {
		c.Server.Port = -1 // any free port, which every other listener writes as 0
	}
	c = c.WithDefaults()
	return c, c.Validate()
}

// WithDefaults returns c with the default of every key that is not set. A member's own
// listeners have the addresses of its entry in [cluster] members.
func (c Config) WithDefaults() Config {
	c.Node.Name = cmp.Or(c.Node.Name, "local")
	c.Node.DataDir = cmp.Or(c.Node.DataDir, "yardmaster-data")
	c.Node.LogLevel = cmp.Or(c.Node.LogLevel, "info")
	c.Node.LogFormat = cmp.Or(c.Node.LogFormat, "text")
	c.NATS.Listen = cmp.Or(c.NATS.Listen, "127.0.0.1:4222")
	c.HTTP.Listen = cmp.Or(c.HTTP.Listen, "127.0.0.1:4280")
	c.Cluster.Name = cmp.Or(c.Cluster.Name, "yard")
	if self := c.Self(); self != nil {
		c.NATS.RouteListen = cmp.Or(c.NATS.RouteListen, self.Route)
		c.Raft.Listen = cmp.Or(c.Raft.Listen, self.Raft)
	}
	c.Disk = c.Disk.withDefaults()
	c.Scheduler = c.Scheduler.withDefaults(&c.RRQ)
	c.Config = c.Config.WithDefaults()
	c.Config.Node = c.Node.Name
	c.RRQ.Dir = c.Node.DataDir
	return c
}

// withDefaults returns s with the value of [rrq], or else the default, of every key that
// is not set.
func (s Scheduler) withDefaults(rrq *runnerpool.Config) Scheduler {
	if s.CreateQueues == nil {
		s.CreateQueues = new(true)
	}
	policy := rrq.Policy(job.DefaultPolicy)
	s.MaxAttempts = cmp.Or(s.MaxAttempts, policy.MaxAttempts)
	s.RetryBase = cmp.Or(s.RetryBase, policy.BaseDelay)
	s.RetryMax = cmp.Or(s.RetryMax, policy.MaxDelay)
	s.RetryJitter = cmp.Or(s.RetryJitter, &policy.Jitter)
	s.MaxErrorBytes = cmp.Or(s.MaxErrorBytes, job.DefaultErrorBytes)
	s.NewQueuesPerMinute = cmp.Or(s.NewQueuesPerMinute, 100)
	s.ConsistencyCheckInterval = cmp.Or(s.ConsistencyCheckInterval, 5*time.Minute)
	if rrq.DefaultTimeout > 0 {
		s.DefaultTimeout = cmp.Or(s.DefaultTimeout, time.Duration(rrq.DefaultTimeout*float64(time.Second)))
	}
	s.DefaultTimeout = cmp.Or(s.DefaultTimeout, 5*time.Minute)
	return s
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
	if err := c.Node.validate(); err != nil {
		return err
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
	if c.NATS.MaxStore != 0 && c.NATS.MaxStore < minStore {
		return fmt.Errorf("nats.max_store_bytes is %d; must be 0 or at least %d", c.NATS.MaxStore, minStore)
	}
	if err := c.Scheduler.validate(); err != nil {
		return err
	}
	if err := errors.Join(c.Disk.validate(), c.Retention.validate()); err != nil {
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

// minStore is the smallest limit of the bytes in streams.
const minStore = 256 << 20

// validate checks the name of the node and the settings of its log.
func (n Node) validate() error {
	switch {
	case !memberName.MatchString(n.Name):
		return fmt.Errorf("node.name is %q; must be 1 to 63 lower-case letters, digits and '-', with no '-' at its ends", n.Name)
	case !slices.Contains([]string{"debug", "info", "warn", "error"}, n.LogLevel):
		return fmt.Errorf("node.log_level is %q; must be debug, info, warn or error", n.LogLevel)
	case n.LogFormat != "text" && n.LogFormat != "json":
		return fmt.Errorf("node.log_format is %q; must be text or json", n.LogFormat)
	}
	return nil
}

// checkZeroes returns an error for a key of [scheduler] that is given as 0. isGiven
// reports whether a key is in the file or the environment: the defaults replace a 0
// that is not.
func (c *Config) checkZeroes(isGiven func(v variable) bool) error {
	completed := c.WithDefaults()
	fields := completed.variables()
	for i, v := range c.variables() {
		if v.table == "scheduler" && v.field.IsZero() && isGiven(v) {
			fields[i].field.SetZero()
		}
	}
	return completed.Scheduler.validate()
}

// validate checks the ranges of all keys. The delays of retries must be in order.
func (s Scheduler) validate() error {
	for _, d := range []struct {
		key             string
		value, min, max time.Duration
	}{
		{"default_timeout", s.DefaultTimeout, time.Second, job.MaxDuration},
		{"retry_base", s.RetryBase, time.Millisecond, time.Hour},
		{"prove_every", s.ConsistencyCheckInterval, time.Second, 24 * time.Hour},
		{"retry_max", s.RetryMax, s.RetryBase, 30 * 24 * time.Hour},
	} {
		if d.value < d.min || d.value > d.max {
			return fmt.Errorf("scheduler.%s is %s; must be %s to %s", d.key, duration.Format(d.value), duration.Format(d.min), duration.Format(d.max))
		}
	}
	if s.NewQueuesPerMinute < 1 || s.NewQueuesPerMinute > ledger.MaxQueues {
		return fmt.Errorf("scheduler.new_queues_per_minute is %d; must be 1 to %d, which is as many queues as a yard may have", s.NewQueuesPerMinute, ledger.MaxQueues)
	}
	if s.MaxAttempts < 1 || s.MaxAttempts > 1000 {
		return fmt.Errorf("scheduler.max_attempts is %d; must be 1 to 1000", s.MaxAttempts)
	}
	if s.MaxErrorBytes < job.MinErrorBytes || s.MaxErrorBytes > job.MaxErrorBytes {
		return fmt.Errorf("scheduler.max_error_bytes is %d; must be %d to %d", s.MaxErrorBytes, job.MinErrorBytes, job.MaxErrorBytes)
	}
	if *s.RetryJitter > 100 {
		return fmt.Errorf("scheduler.retry_jitter is %d; must be 0 to 100 (percent)", *s.RetryJitter)
	}
	return nil
}

// validateMembers checks [cluster] members, which may be empty: that their number is
// allowed, that this node is one of them, and that each has a valid name of its own and
// two valid addresses.
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

// CheckAddress returns an error that names key unless value is host:port.
func CheckAddress(key, value string) error {
	if _, _, err := net.SplitHostPort(value); err != nil {
		return fmt.Errorf("%s is %q; must be host:port, such as 127.0.0.1:4222", key, value)
	}
	return nil
}

// EdgeAddress returns the address at which clients of other nodes reach this node's
// Overhop edge, which listens on the address listener; "" if it is not known. An edge
// that listens on all interfaces is reached at the host of this member's route address.
func (c *Config) EdgeAddress(listener string) string {
	if c.Server.Advertise != "" {
		return c.Server.Advertise
	}
	_, port, err := net.SplitHostPort(listener)
	if err != nil {
		return ""
	}
	host := c.Server.Host
	if c.Server.IsWildcard() {
		self := c.Self()
		if self == nil {
			return ""
		}
		host, _, _ = net.SplitHostPort(self.Route)
	}
	return net.JoinHostPort(host, port)
}
