package edge

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"yardmaster/edge/overhop"
)

// Config is the edge of one node. Server, Wire and Pagination are written as
// Overhop's users write them; Delivery and Limits are ours. A zero field means
// its default.
type Config struct {
	Node    string `toml:"-"` // the node's name, told to clients
	Version string `toml:"-"` // of the program, for STATUS
	Built   string `toml:"-"` // when, RFC 3339, for STATUS; empty: not known

	Server     ServerConfig     `toml:"server"`
	Wire       WireConfig       `toml:"wire"`
	Pagination PaginationConfig `toml:"pagination"`
	Delivery   DeliveryConfig   `toml:"delivery"`
	Limits     LimitsConfig     `toml:"limits"`
}

// DefaultPort is Overhop's.
const DefaultPort = 9876

// ServerConfig says where the edge listens, and whom it lets in.
type ServerConfig struct {
	// Host to listen on, a name or an address. Default "127.0.0.1".
	Host string `toml:"host"`
	// Port to listen on, 1 to 65535, or -1 for any free one. Default 9876.
	Port int `toml:"port"`
	// Advertise is the host:port at which clients of other nodes reach this
	// edge. Default: Host and the port that is listened on; if Host stands for
	// all addresses, the roof knows a better one.
	Advertise string `toml:"advertise"`
	// Token is what a client's HELLO has to bring before it may register, 1 to
	// 256 bytes of text without control characters. Default "": nothing is asked.
	Token Secret `toml:"token"`
	// TLSEnabled serves TLS and nothing else. Default: whether TLS names a
	// certificate.
	TLSEnabled *bool `toml:"tls_enabled"`
	// TLS names the files for that.
	TLS TLSConfig `toml:"tls"`
}

// Secret is a text that is never shown.
type Secret string

// String hides the text from logs and messages.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

// GoString hides it from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides it from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Address is what to listen on.
func (c ServerConfig) Address() string {
	return net.JoinHostPort(c.Host, strconv.Itoa(max(c.Port, 0)))
}

// Everywhere tells that Host stands for all addresses of the machine, and so is
// none that a client could connect to.
func (c ServerConfig) Everywhere() bool {
	addr, err := netip.ParseAddr(c.Host)
	return err == nil && addr.IsUnspecified()
}

// validate says what is wrong with a config with defaults.
func (c ServerConfig) validate() error {
	if c.Advertise != "" {
		host, port, err := net.SplitHostPort(c.Advertise)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 {
			return fmt.Errorf("server.advertise is %q; must be host:port as clients reach this node, such as 10.0.0.1:9876", c.Advertise)
		}
	}
	if len(c.Token) > maxToken {
		return fmt.Errorf("server.token has %d bytes; must be 1 to %d, or empty to ask for none", len(c.Token), maxToken)
	}
	if !utf8.ValidString(string(c.Token)) || strings.ContainsFunc(string(c.Token), unicode.IsControl) {
		return errors.New("server.token is no text, or holds a control character such as a line's end; clients could not send it")
	}
	return c.validateTLS()
}

// maxToken is the longest token that may be asked for, in bytes.
const maxToken = 256

// WireConfig bounds what travels.
type WireConfig struct {
	// MaxEnvelope is the largest frame payload taken and sent, in bytes, 65536
	// to 33554432. Default 8388608.
	MaxEnvelope int `toml:"max_envelope_size_bytes"`
	// Session bounds connections that are not registered.
	Session SessionConfig `toml:"session"`
}

// SessionConfig holds lifetimes in whole seconds, 1 to 3600.
type SessionConfig struct {
	// Unhelloed is how long a connection may live before its HELLO. Default 10.
	Unhelloed int `toml:"unhelloed_max_lifetime_seconds"`
	// Unregistered is how long after its HELLO a connection is asked to
	// register. Default 10.
	Unregistered int `toml:"helloed_unregistered_max_lifetime_seconds"`
	// Ident is how long it then has for that. Default 2.
	Ident int `toml:"ident_register_timeout_seconds"`
}

func (c SessionConfig) lifetimes() overhop.Lifetimes {
	return overhop.Lifetimes{
		Unhelloed:    time.Duration(c.Unhelloed) * time.Second,
		Unregistered: time.Duration(c.Unregistered) * time.Second,
		Ident:        time.Duration(c.Ident) * time.Second,
	}
}

// mostOnPage is the most jobs that any page may have.
const mostOnPage = 10_000

// PaginationConfig bounds LSJOB.
type PaginationConfig struct {
	// PageSize is the jobs on a page if the request names none, 1 to
	// MaxPageSize. Default 15.
	PageSize int `toml:"page_size"`
	// MaxPageSize is the most jobs on a page; a request for more gets as many.
	// 1 to 10000. Default 1000, or PageSize if that is more.
	MaxPageSize int `toml:"max_page_size"`
}

// DeliveryConfig sets the life of jobs at workers.
type DeliveryConfig struct {
	// RequireHelloExt gives jobs only to clients that offered "delivery/1" in
	// HELLO. Default true; with false any subscription with credits gets them,
	// also of clients that do not know what a QUEST is.
	RequireHelloExt *bool `toml:"require_hello_ext"`
	// Ack is how long a worker has to ACK or NACK a QUEST, 1s to 60s.
	// Default 5s.
	Ack time.Duration `toml:"ack_timeout"`
	// Lease is how long a worker may be silent about a job, 2s to 6s: no lease
	// may be longer than that of the node which gives it. Default 6s.
	Lease time.Duration `toml:"lease"`
	// Beat is how often a worker is asked to BEAT, at most half of Lease.
	// Default 2s.
	Beat time.Duration `toml:"beat"`
	// RecallGrace is how long a recalled job has to end by itself, 0s to 60s;
	// -1ns for none. Default 2s.
	RecallGrace time.Duration `toml:"recall_grace"`
	// SettleWait is how long a DONE or FAIL waits for its commit before it is
	// answered UNAVAILABLE, 100ms or more and less than Lease minus Beat: what
	// comes behind it, such as a BEAT, may have to wait as long. Default three
	// quarters of that, 3s at most.
	SettleWait time.Duration `toml:"settle_wait"`
	// DrainGrace is what DRAIN announces as the time until the node closes its
	// connections, 1s to 1h. Default 10s.
	DrainGrace time.Duration `toml:"drain_grace"`
}

// LimitsConfig bounds what clients may cost.
type LimitsConfig struct {
	// Connections is the most at once, 1 to 1000000. Default 20000.
	Connections int `toml:"max_connections"`
	// PerAddress is the most at once from one address, 1 to 1000000. Default
	// 10000.
	PerAddress int `toml:"max_connections_per_address"`
	// Subscriptions is the most of one worker, 1 to 100000. Default 1024.
	Subscriptions int `toml:"max_subscriptions_per_worker"`
	// Awaits is the most ends of jobs one connection may wait for at once, 1
	// to 10000. Default 64.
	Awaits int `toml:"max_awaits_per_connection"`
	// FrameMemory is how much all frames of more than 64 KiB that have come and
	// are not answered may take together, in bytes, Wire.MaxEnvelope to
	// 2147483647. Who needs more waits. Default 268435456.
	FrameMemory int `toml:"max_frame_memory_bytes"`
	// ReadTimeout is how long a client may take to finish a frame that it has
	// begun, 1s to 5m, beside a second for each 256 KiB of it; then it is cut
	// off. Default 30s.
	ReadTimeout time.Duration `toml:"read_timeout"`
	// WriteTimeout is how long a client may take to read what was written for
	// it before it is cut off, 100ms to 5m. Default 10s.
	WriteTimeout time.Duration `toml:"write_timeout"`
	// IdleTimeout is how long a registered client may be silent before it is
	// cut off, 10s or more; 0 means for ever. Default 0.
	IdleTimeout time.Duration `toml:"idle_timeout"`
	// RequestTimeout is how long a request may take that the whole yard has to
	// answer, 1s to 60s. Default 5s.
	RequestTimeout time.Duration `toml:"request_timeout"`
}

// WithDefaults fills in what is not set.
func (c Config) WithDefaults() Config {
	byDefault(&c.Server.Host, "127.0.0.1")
	byDefault(&c.Server.Port, DefaultPort)
	byDefault(&c.Wire.MaxEnvelope, overhop.DefaultFrameLimit)
	byDefault(&c.Wire.Session.Unhelloed, 10)
	byDefault(&c.Wire.Session.Unregistered, 10)
	byDefault(&c.Wire.Session.Ident, 2)
	byDefault(&c.Pagination.PageSize, 15)
	byDefault(&c.Pagination.MaxPageSize, max(1000, min(c.Pagination.PageSize, mostOnPage)))
	if c.Delivery.RequireHelloExt == nil {
		required := true
		c.Delivery.RequireHelloExt = &required
	}
	byDefault(&c.Delivery.Ack, 5*time.Second)
	byDefault(&c.Delivery.Lease, 6*time.Second)
	byDefault(&c.Delivery.Beat, 2*time.Second)
	byDefault(&c.Delivery.RecallGrace, 2*time.Second)
	byDefault(&c.Delivery.SettleWait, min(3*time.Second, (c.Delivery.Lease-c.Delivery.Beat)*3/4))
	byDefault(&c.Delivery.DrainGrace, 10*time.Second)
	byDefault(&c.Limits.Connections, 20_000)
	byDefault(&c.Limits.PerAddress, 10_000)
	byDefault(&c.Limits.Subscriptions, 1024)
	byDefault(&c.Limits.Awaits, 64)
	byDefault(&c.Limits.FrameMemory, 256<<20)
	byDefault(&c.Limits.ReadTimeout, 30*time.Second)
	byDefault(&c.Limits.WriteTimeout, 10*time.Second)
	byDefault(&c.Limits.RequestTimeout, 5*time.Second)
	return c
}

func byDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate says which field of a config with defaults is out of range and what
// the range is.
func (c Config) Validate() error {
	session := c.Wire.Session
	for _, f := range [...]struct {
		key             string
		value, min, max int
	}{
		{"server.port", c.Server.Port, -1, 65535},
		{"wire.max_envelope_size_bytes", c.Wire.MaxEnvelope, overhop.MinFrameLimit, overhop.MaxFrameLimit},
		{"wire.session.unhelloed_max_lifetime_seconds", session.Unhelloed, 1, 3600},
		{"wire.session.helloed_unregistered_max_lifetime_seconds", session.Unregistered, 1, 3600},
		{"wire.session.ident_register_timeout_seconds", session.Ident, 1, 3600},
		{"pagination.max_page_size", c.Pagination.MaxPageSize, 1, mostOnPage},
		{"pagination.page_size", c.Pagination.PageSize, 1, c.Pagination.MaxPageSize},
		{"limits.max_connections", c.Limits.Connections, 1, 1_000_000},
		{"limits.max_connections_per_address", c.Limits.PerAddress, 1, 1_000_000},
		{"limits.max_subscriptions_per_worker", c.Limits.Subscriptions, 1, 100_000},
		{"limits.max_awaits_per_connection", c.Limits.Awaits, 1, 10_000},
		{"limits.max_frame_memory_bytes", c.Limits.FrameMemory, c.Wire.MaxEnvelope, math.MaxInt32},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s is %d; must be %d to %d", f.key, f.value, f.min, f.max)
		}
	}
	if err := c.validateDurations(); err != nil {
		return err
	}
	return c.Server.validate()
}

func (c Config) validateDurations() error {
	for _, f := range [...]struct {
		key             string
		value, min, max time.Duration
	}{
		{"delivery.ack_timeout", c.Delivery.Ack, time.Second, time.Minute},
		{"delivery.lease", c.Delivery.Lease, 2 * time.Second, 6 * time.Second},
		{"delivery.beat", c.Delivery.Beat, 100 * time.Millisecond, c.Delivery.Lease / 2},
		{"delivery.recall_grace", c.Delivery.RecallGrace, -1, time.Minute},
		{"delivery.drain_grace", c.Delivery.DrainGrace, time.Second, time.Hour},
		{"limits.read_timeout", c.Limits.ReadTimeout, time.Second, 5 * time.Minute},
		{"limits.write_timeout", c.Limits.WriteTimeout, 100 * time.Millisecond, 5 * time.Minute},
		{"limits.request_timeout", c.Limits.RequestTimeout, time.Second, time.Minute},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("%s is %s; must be %s to %s", f.key, f.value, f.min, f.max)
		}
	}
	d := c.Delivery
	if d.SettleWait < 100*time.Millisecond || d.SettleWait >= d.Lease-d.Beat {
		return fmt.Errorf("delivery.settle_wait is %s; must be at least 100ms, and less than delivery.lease minus delivery.beat, which is %s", d.SettleWait, d.Lease-d.Beat)
	}
	if idle := c.Limits.IdleTimeout; idle != 0 && idle < 10*time.Second {
		return fmt.Errorf("limits.idle_timeout is %s; must be 0 or at least 10s", idle)
	}
	return nil
}
