package node

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

	"yardmaster/edge"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/runnerpool"
)

// Config is the file of one node. A node without a file is a yard of its own:
// every key has a default.
type Config struct {
	Node      NodeConfig      `toml:"node"`
	NATS      NATSConfig      `toml:"nats"`
	HTTP      HTTPConfig      `toml:"http"`
	Raft      RaftConfig      `toml:"raft"`
	Cluster   ClusterConfig   `toml:"cluster"`
	Scheduler SchedulerConfig `toml:"scheduler"`
	Disk      DiskConfig      `toml:"disk"`
	Scrub     ScrubConfig     `toml:"scrub"`

	// The Overhop edge, as Overhop's users write it.
	edge.Config
	// The RRQ runner pools, as RRQ's users write them.
	RRQ runnerpool.Config `toml:"rrq"`
}

// NodeConfig says who the node is.
type NodeConfig struct {
	// Name of the member: lower-case letters, digits and '-', 1 to 63 bytes.
	// Default "local". It belongs to DataDir from the first start on.
	Name string `toml:"name"`
	// DataDir is where the node keeps everything. Default "yardmaster-data".
	DataDir string `toml:"data_dir"`
	// LogLevel is "debug", "info", "warn" or "error". Default "info".
	LogLevel string `toml:"log_level"`
	// LogFormat is "text" or "json". Default "text".
	LogFormat string `toml:"log_format"`
}

// NATSConfig is the embedded NATS server.
type NATSConfig struct {
	// Listen is host:port for NATS clients; port 0 picks one. Default
	// "127.0.0.1:4222".
	Listen string `toml:"listen"`
	// RouteListen is host:port for the other members; cluster mode only.
	// Default: this member's route address.
	RouteListen string `toml:"route_listen"`
	// MaxStore is how many bytes the streams may fill, 0 or at least
	// 268435456. Default 0: three quarters of the disk's free space.
	MaxStore int64 `toml:"max_store_bytes"`
	// PrimaryLane lets all nodes use one lane while they have little to do:
	// fewer and larger writes, one hop more. Default false.
	PrimaryLane bool `toml:"primary_lane"`
	// Anonymous is the role of clients that name no user, where there are Users.
	// Default "": they are not let in.
	Anonymous string `toml:"anonymous"`
	// Users are who may connect, the same on every member. Default: none, and
	// whoever connects is the operator.
	Users []UserConfig `toml:"users"`
	// TLS names the files with which NATS clients are spoken to by TLS, and by
	// nothing else. Default: none is spoken.
	TLS edge.TLSConfig `toml:"tls"`
}

// HTTPConfig is the HTTP door.
type HTTPConfig struct {
	// Listen is host:port for HTTP clients; port 0 picks one, "off" opens none.
	// Default "127.0.0.1:4280".
	Listen string `toml:"listen"`
	// Token is asked of whoever wants more than to know how the node is, as a
	// bearer token of 1 to 256 bytes. Default "": nothing is asked.
	Token edge.Secret `toml:"token"`
	// TLS names the files with which HTTP clients are spoken to by TLS, and by
	// nothing else. Default: none is spoken.
	TLS edge.TLSConfig `toml:"tls"`
}

// Off tells that there is to be no HTTP door.
func (c HTTPConfig) Off() bool { return c.Listen == "off" }

// validate says what is wrong with a config with defaults.
func (c HTTPConfig) validate() error {
	if len(c.Token) > 256 || strings.ContainsFunc(string(c.Token), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("http.token must be 1 to 256 visible ASCII characters without spaces, or empty to ask for none; clients could not send it")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil && !c.Off() {
		return fmt.Errorf("http.listen is %q; must be host:port, such as 127.0.0.1:4280, or off", c.Listen)
	}
	return validateTLS("http.tls", c.TLS)
}

// RaftConfig is the Raft port and log.
type RaftConfig struct {
	// Listen is host:port for the other members; cluster mode only. Default:
	// this member's raft address.
	Listen string `toml:"listen"`
	// SnapshotBytes of committed entries cause a snapshot of the ledger, after
	// which the log before it is cut off; at least 64 KiB. Default 64 MiB.
	SnapshotBytes int64 `toml:"snapshot_bytes"`
}

func (c RaftConfig) validate() error {
	if c.SnapshotBytes != 0 && c.SnapshotBytes < 64<<10 {
		return fmt.Errorf("raft.snapshot_bytes is %d; must be at least %d", c.SnapshotBytes, 64<<10)
	}
	return nil
}

// ClusterConfig declares the members. Without members the node is alone.
type ClusterConfig struct {
	// Name of the yard, the same on every member. Default "yard".
	Name string `toml:"name"`
	// Secret is asked of whoever connects to a route; the same on every
	// member. Default "": nothing is asked.
	Secret string `toml:"secret"`
	// TLS names the files with which members show each other who they are.
	// Default: they speak no TLS.
	TLS MemberTLSConfig `toml:"tls"`
	// Members lists all members, this one included: 3 to 5. It is whom a node
	// looks for first; who belongs to a yard that has formed, its ledger says.
	Members []MemberConfig `toml:"members"`
}

// MemberConfig is one member as the others reach it.
type MemberConfig struct {
	// Name of the member.
	Name string `toml:"name"`
	// Route is its NATS route address, host:port.
	Route string `toml:"route"`
	// Raft is its Raft address, host:port.
	Raft string `toml:"raft"`
}

// SchedulerConfig is what the authority decides by; the same on every member.
type SchedulerConfig struct {
	// CreateQueues lets a job of an unknown queue create it, except over
	// Overhop. Default true.
	CreateQueues *bool `toml:"create_queues"`
	// DefaultTimeout is the hard limit of an attempt whose job names none, 1s
	// to 10 years. Default 5m, or what [rrq] says.
	DefaultTimeout time.Duration `toml:"default_timeout"`
	// MaxAttempts is the total attempts of a job that names none, 1 to 1000.
	// Default 5, or what [rrq] says.
	MaxAttempts uint32 `toml:"max_attempts"`
	// RetryBase is the delay after the first failed attempt; it doubles with
	// each. 1ms to 1h. Default 5s, or what [rrq] says.
	RetryBase time.Duration `toml:"retry_base"`
	// RetryMax is the longest delay, RetryBase to 30 days. Default 1h, or what
	// [rrq] says.
	RetryMax time.Duration `toml:"retry_max"`
	// ProveEvery is how often all members compare the hashes of their ledgers, 1s
	// to 24h. Default 5m.
	ProveEvery time.Duration `toml:"prove_every"`
}

// Load reads a config file, "" for none, lets the environment override it, and
// checks it.
func Load(path string) (Config, error) {
	var c Config
	c.Server.Port = edge.DefaultPort // so that a 0 is one that somebody wrote
	if path != "" {
		meta, err := toml.DecodeFile(path, &c)
		if err != nil {
			return Config{}, fmt.Errorf("config %s: %w", path, decodeError(err, &meta))
		}
		strange, idle := strangeKeys(meta.Undecoded())
		if c.RRQ.Idle = idle; strange != "" {
			return Config{}, fmt.Errorf("config %s: %s; see docs/configuration.md for the keys there are", path, strange)
		}
		if err := notTables(&meta); err != nil {
			return Config{}, fmt.Errorf("config %s: %w", path, err)
		}
		if err := c.RRQ.ValidateWritten(func(runner, key string) bool { return meta.IsDefined("rrq", "runners", runner, key) }); err != nil {
			return Config{}, fmt.Errorf("config %s: %w", path, err)
		}
	}
	if err := checkEnvironment(os.Environ()); err != nil {
		return Config{}, err
	}
	if err := fromEnvironment(&c, os.LookupEnv); err != nil {
		return Config{}, err
	}
	if c.Server.Port == 0 {
		c.Server.Port = -1 // any free one, as everywhere else
	}
	c = c.WithDefaults()
	return c, c.Validate()
}

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	fill(&c.Node.Name, "local")
	fill(&c.Node.DataDir, "yardmaster-data")
	fill(&c.Node.LogLevel, "info")
	fill(&c.Node.LogFormat, "text")
	fill(&c.NATS.Listen, "127.0.0.1:4222")
	fill(&c.HTTP.Listen, "127.0.0.1:4280")
	fill(&c.Cluster.Name, "yard")
	c.Disk.fill()
	c.Scrub.fill()
	if me := c.me(); me != nil {
		fill(&c.NATS.RouteListen, me.Route)
		fill(&c.Raft.Listen, me.Raft)
	}
	if c.Scheduler.CreateQueues == nil {
		yes := true
		c.Scheduler.CreateQueues = &yes
	}
	policy := c.RRQ.Policy(job.DefaultPolicy)
	fill(&c.Scheduler.MaxAttempts, policy.MaxAttempts)
	fill(&c.Scheduler.ProveEvery, 5*time.Minute)
	fill(&c.Scheduler.RetryBase, policy.Base)
	fill(&c.Scheduler.RetryMax, policy.Max)
	timeout := 5 * time.Minute
	if c.RRQ.DefaultTimeout > 0 {
		timeout = time.Duration(c.RRQ.DefaultTimeout * float64(time.Second))
	}
	fill(&c.Scheduler.DefaultTimeout, timeout)
	c.Config = c.Config.WithDefaults()
	c.Config.Node = c.Node.Name
	c.RRQ.Dir = c.Node.DataDir
	return c
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// me is this node's entry among the members; nil in single mode.
func (c *Config) me() *MemberConfig {
	for i := range c.Cluster.Members {
		if c.Cluster.Members[i].Name == c.Node.Name {
			return &c.Cluster.Members[i]
		}
	}
	return nil
}

// Clustered tells that members are declared.
func (c *Config) Clustered() bool { return len(c.Cluster.Members) > 0 }

// members names all members; this node alone in single mode.
func (c *Config) members() []string {
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

// Validate says which key is wrong, why, and what it may be.
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
	if err := hostPort("nats.listen", c.NATS.Listen); err != nil {
		return err
	}
	if err := errors.Join(validateTLS("nats.tls", c.NATS.TLS), c.HTTP.validate(), c.Cluster.TLS.validate()); err != nil {
		return err
	}
	if err := c.Raft.validate(); err != nil {
		return err
	}
	if _, err := c.NATS.users(); err != nil {
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
		{"scheduler.prove_every", s.ProveEvery, time.Second, 24 * time.Hour},
		{"scheduler.retry_max", s.RetryMax, s.RetryBase, 30 * 24 * time.Hour},
	} {
		if d.value < d.min || d.value > d.max {
			return fmt.Errorf("%s is %s; must be %s to %s", d.key, d.value, d.min, d.max)
		}
	}
	if s.MaxAttempts < 1 || s.MaxAttempts > 1000 {
		return fmt.Errorf("scheduler.max_attempts is %d; must be 1 to 1000", s.MaxAttempts)
	}
	if err := errors.Join(c.Disk.validate(), c.Scrub.validate()); err != nil {
		return err
	}
	if err := c.Config.Validate(); err != nil {
		return err
	}
	if err := c.RRQ.Validate(); err != nil {
		return fmt.Errorf("rrq: %w", err)
	}
	if !c.Clustered() {
		if err := c.RRQ.ValidateAlone(); err != nil {
			return fmt.Errorf("rrq: %w", err)
		}
	}
	if _, err := declaredCrons(c.RRQ.CronJobs, c.RRQ.Queue()); err != nil {
		return err
	}
	return c.validateMembers()
}

func (c *Config) validateMembers() error {
	if !c.Clustered() {
		return nil
	}
	if n := len(c.Cluster.Members); n < ledger.MinMembers || n > ledger.MaxMembers {
		return fmt.Errorf("cluster.members has %d members; must be %d to %d (or none, for a node alone)", n, ledger.MinMembers, ledger.MaxMembers)
	}
	if c.me() == nil {
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
			if err := hostPort("cluster.members "+m.Name+" "+a.key, a.value); err != nil {
				return err
			}
		}
	}
	return nil
}

func hostPort(key, value string) error {
	if _, _, err := net.SplitHostPort(value); err != nil {
		return fmt.Errorf("%s is %q; must be host:port, such as 127.0.0.1:4222", key, value)
	}
	return nil
}
