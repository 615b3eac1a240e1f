package edge

import (
	"cmp"
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

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Config configures the edge of one node. Server, Wire and Pagination have the
// keys of the Overhop reference server; Delivery and Limits are this server's.
// A zero field means its default.
type Config struct {
	Node    string `toml:"-"` // the node's name, sent to clients
	Version string `toml:"-"` // of the program, for STATUS
	Built   string `toml:"-"` // build time, RFC 3339, for STATUS; empty: unknown

	Server     ServerConfig     `toml:"server"`
	Wire       WireConfig       `toml:"wire"`
	Pagination PaginationConfig `toml:"pagination"`
	Delivery   DeliveryConfig   `toml:"delivery"`
	Limits     LimitsConfig     `toml:"limits"`
}

// DefaultPort is the default port of Overhop.
const DefaultPort = 9876

// ServerConfig configures the listener and how clients authenticate.
type ServerConfig struct {
	// Host to listen on, a name or an address. Default "127.0.0.1".
	Host string `toml:"host"`
	// Port to listen on, 1 to 65535, or -1 for any free one. Default 9876.
	Port int `toml:"port"`
	// Advertise is the host:port at which clients of other nodes reach this
	// edge. Default: Host and the actual port; if Host is a wildcard address,
	// the node chooses its own address.
	Advertise string `toml:"advertise"`
	// Token is the token that a client's HELLO must contain before it may
	// register: 1 to 256 bytes of text without control characters. Default "":
	// no token is required.
	Token Secret `toml:"token"`
	// TLSEnabled makes the port accept TLS only. Default: true if TLS names a
	// certificate.
	TLSEnabled *bool `toml:"tls_enabled"`
	// TLS names the certificate files.
	TLS TLSConfig `toml:"tls"`
}

// Secret is a text that is never printed.
type Secret string

// String returns "(hidden)", or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

// GoString returns String, so that %#v does not print the secret.
func (s Secret) GoString() string { return s.String() }

// MarshalText returns String, so that encoders do not write the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Address returns the address to listen on.
func (c ServerConfig) Address() string {
	return net.JoinHostPort(c.Host, strconv.Itoa(max(c.Port, 0)))
}

// IsWildcard reports whether Host is the unspecified address, which listens on
// all addresses and which clients cannot connect to.
func (c ServerConfig) IsWildcard() bool {
	addr, err := netip.ParseAddr(c.Host)
	return err == nil && addr.IsUnspecified()
}

// validate returns an error if a field is invalid. Defaults must have been
// applied.
func (c ServerConfig) validate() error {
	if c.Advertise != "" && !isHostPort(c.Advertise) {
		return fmt.Errorf("server.advertise is %q; must be host:port as clients reach this node, such as 10.0.0.1:9876", c.Advertise)
	}
	if len(c.Token) > maxToken {
		return fmt.Errorf("server.token has %d bytes; must be 1 to %d, or empty to ask for none", len(c.Token), maxToken)
	}
	if !utf8.ValidString(string(c.Token)) || strings.ContainsFunc(string(c.Token), unicode.IsControl) {
		return errors.New("server.token is not valid UTF-8, or contains a control character such as a newline; clients could not send it")
	}
	return c.validateTLS()
}

// isHostPort reports whether address is a host, a colon and a port from 1 to
// 65535.
func isHostPort(address string) bool {
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && host != "" && number > 0
}

// TLSConfig names PEM files. They are read at start and again when they change.
type TLSConfig struct {
	// CertFile holds the server's certificate, followed by its intermediate
	// certificates.
	CertFile string `toml:"cert_file"`
	// KeyFile holds the certificate's private key.
	KeyFile string `toml:"key_file"`
	// ClientCAFile holds the authorities of client certificates. If it is set,
	// a client must present a certificate signed by one of them. Default:
	// client certificates are not requested.
	ClientCAFile string `toml:"client_ca_file"`
}

// tlsEnabled reports whether clients must use TLS.
func (c ServerConfig) tlsEnabled() bool {
	if c.TLSEnabled != nil {
		return *c.TLSEnabled
	}
	return c.TLS.CertFile != ""
}

// validateTLS returns an error if TLS is enabled, or any of its files is named,
// and the certificate or its key is missing. Files are ignored if TLS is disabled.
func (c ServerConfig) validateTLS() error {
	unset := c.TLSEnabled == nil && c.TLS == TLSConfig{}
	disabled := c.TLSEnabled != nil && !*c.TLSEnabled
	switch {
	case unset || disabled:
		return nil
	case c.TLS.CertFile == "":
		return errors.New("TLS needs a certificate: set cert_file and key_file in [server.tls], or server.tls_enabled = false")
	case c.TLS.KeyFile == "":
		return errors.New("server.tls.key_file is missing; it names the private key of server.tls.cert_file")
	}
	return nil
}

// maxToken is the largest length of a token, in bytes.
const maxToken = 256

// WireConfig limits frames.
type WireConfig struct {
	// MaxEnvelope is the largest frame payload that is accepted and sent, in
	// bytes, 65536 to 33554432. Default 8388608.
	MaxEnvelope int `toml:"max_envelope_size_bytes"`
	// Session limits connections that have not registered.
	Session SessionConfig `toml:"session"`
}

// SessionConfig limits how long a connection may exist without registering, in
// whole seconds, 1 to 3600. The server checks them at the interval of the
// shortest limit, so a connection may exceed the others by up to that time.
type SessionConfig struct {
	// Unhelloed is the time from the connection to HELLO. Default 10.
	Unhelloed int `toml:"unhelloed_max_lifetime_seconds"`
	// Unregistered is the time from HELLO until the client is asked to register.
	// Default 10.
	Unregistered int `toml:"helloed_unregistered_max_lifetime_seconds"`
	// Ident is the time from that request to REGISTER. Default 2.
	Ident int `toml:"ident_register_timeout_seconds"`
}

// lifetimes returns the limits as durations.
func (c SessionConfig) lifetimes() overhop.Lifetimes {
	return overhop.Lifetimes{
		Unhelloed:    time.Duration(c.Unhelloed) * time.Second,
		Unregistered: time.Duration(c.Unregistered) * time.Second,
		Ident:        time.Duration(c.Ident) * time.Second,
	}
}

// validate returns an error if a limit is out of range.
func (c SessionConfig) validate() error {
	const longest = 3600
	return cmp.Or(
		validateRange("wire.session.unhelloed_max_lifetime_seconds", c.Unhelloed, 1, longest),
		validateRange("wire.session.helloed_unregistered_max_lifetime_seconds", c.Unregistered, 1, longest),
		validateRange("wire.session.ident_register_timeout_seconds", c.Ident, 1, longest),
	)
}

// PaginationConfig configures the pages of LSJOB.
type PaginationConfig struct {
	// PageSize is the number of jobs on a page if the request has none, 1 to 10000.
	// Default 15.
	PageSize int `toml:"page_size"`
}

// largestPage returns the largest number of jobs on a page. A request for more
// gets this number.
func (c PaginationConfig) largestPage() int { return max(1000, c.PageSize) }

// recallGrace is how long a worker has, after a RECALL, to end the job itself.
// Then the node revokes the lease.
const recallGrace = 2 * time.Second

// DeliveryConfig configures the delivery of jobs to workers.
type DeliveryConfig struct {
	// RequireHelloExt restricts jobs to clients that offer "delivery/1" in
	// HELLO. Default true; if false, any subscription with credits gets jobs,
	// including those of clients that do not support QUEST.
	RequireHelloExt *bool `toml:"require_hello_ext"`
	// Ack is how long a worker has to ACK or NACK a QUEST, 1s to 60s.
	// Default 5s.
	Ack time.Duration `toml:"ack_timeout"`
	// Lease is how long a worker may send nothing about a job before the job is
	// treated as lost, 2s to 6s: it must not be longer than the lease of 6s that
	// the node itself gets from the authority. Default 6s.
	Lease time.Duration `toml:"lease"`
	// Beat is the interval at which workers are asked to send BEAT, 100ms to
	// half of Lease. Default 2s.
	Beat time.Duration `toml:"beat"`
	// DrainGrace is the time, announced in DRAIN, after which the node closes
	// its connections, 1s to 1h. Default 10s.
	DrainGrace time.Duration `toml:"drain_grace"`
}

// settleWait returns how long a DONE or FAIL waits for its commit before it is
// answered UNAVAILABLE. It is less than Lease minus Beat, because later messages
// of the worker, such as a BEAT, may have to wait as long.
func (c DeliveryConfig) settleWait() time.Duration {
	return min(3*time.Second, (c.Lease-c.Beat)*3/4)
}

// LimitsConfig limits what clients may use.
type LimitsConfig struct {
	// Connections is the maximum of connections, 1 to 1000000. Default 20000.
	Connections int `toml:"max_connections"`
	// PerAddress is the maximum of connections from one address, 1 to 1000000.
	// Default 10000.
	PerAddress int `toml:"max_connections_per_address"`
	// Subscriptions is the maximum for one worker, 1 to 100000. Default 1024.
	Subscriptions int `toml:"max_subscriptions_per_worker"`
	// Awaits is the maximum of jobs that one connection may await, 1 to 10000.
	// Default 64.
	Awaits int `toml:"max_awaits_per_connection"`
	// FrameMemory is the memory, in bytes, that all received frames of more
	// than 64 KiB may take until they are answered, Wire.MaxEnvelope to
	// 2147483647. Frames that exceed it wait. Default 268435456.
	FrameMemory int `toml:"max_frame_memory_bytes"`
	// ReadTimeout is how long a client may take to finish a frame, 1s to 5m, in
	// addition to a second for each 256 KiB; then it is cut off. Default 30s.
	ReadTimeout time.Duration `toml:"read_timeout"`
	// WriteTimeout is how long a client may take to read what was written
	// before it is cut off, 100ms to 5m. Default 10s.
	WriteTimeout time.Duration `toml:"write_timeout"`
	// IdleTimeout is how long a registered client may send nothing before it is
	// cut off, 10s or more; 0 means no limit. Default 0.
	IdleTimeout time.Duration `toml:"idle_timeout"`
	// RequestTimeout is how long a request may take that the cluster
	// answers rather than this node, 1s to 60s. Default 5s.
	RequestTimeout time.Duration `toml:"request_timeout"`
}

// WithDefaults returns c with defaults in place of zero fields.
func (c Config) WithDefaults() Config {
	setDefault(&c.Server.Host, "127.0.0.1")
	setDefault(&c.Server.Port, DefaultPort)
	setDefault(&c.Wire.MaxEnvelope, overhop.DefaultFrameLimit)
	setDefault(&c.Wire.Session.Unhelloed, 10)
	setDefault(&c.Wire.Session.Unregistered, 10)
	setDefault(&c.Wire.Session.Ident, 2)
	setDefault(&c.Pagination.PageSize, 15)
	setDefault(&c.Delivery.RequireHelloExt, new(true))
	setDefault(&c.Delivery.Ack, 5*time.Second)
	setDefault(&c.Delivery.Lease, 6*time.Second)
	setDefault(&c.Delivery.Beat, 2*time.Second)
	setDefault(&c.Delivery.DrainGrace, 10*time.Second)
	setDefault(&c.Limits.Connections, 20_000)
	setDefault(&c.Limits.PerAddress, 10_000)
	setDefault(&c.Limits.Subscriptions, 1024)
	setDefault(&c.Limits.Awaits, 64)
	setDefault(&c.Limits.FrameMemory, 256<<20)
	setDefault(&c.Limits.ReadTimeout, 30*time.Second)
	setDefault(&c.Limits.WriteTimeout, 10*time.Second)
	setDefault(&c.Limits.RequestTimeout, 5*time.Second)
	return c
}

func setDefault[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }

// Validate returns an error that names the first field out of range, and its
// range. Defaults must have been applied.
func (c Config) Validate() error {
	delivery, limits := c.Delivery, c.Limits
	return cmp.Or(
		validateRange("server.port", c.Server.Port, -1, 65535),
		validateRange("wire.max_envelope_size_bytes", c.Wire.MaxEnvelope, overhop.MinFrameLimit, overhop.MaxFrameLimit),
		c.Wire.Session.validate(),
		validateRange("pagination.page_size", c.Pagination.PageSize, 1, 10_000),
		validateRange("limits.max_connections", limits.Connections, 1, 1_000_000),
		validateRange("limits.max_connections_per_address", limits.PerAddress, 1, 1_000_000),
		validateRange("limits.max_subscriptions_per_worker", limits.Subscriptions, 1, 100_000),
		validateRange("limits.max_awaits_per_connection", limits.Awaits, 1, 10_000),
		validateRange("limits.max_frame_memory_bytes", limits.FrameMemory, c.Wire.MaxEnvelope, math.MaxInt32),
		validateRange("delivery.ack_timeout", delivery.Ack, time.Second, time.Minute),
		validateRange("delivery.lease", delivery.Lease, 2*time.Second, 6*time.Second),
		validateRange("delivery.beat", delivery.Beat, 100*time.Millisecond, delivery.Lease/2),
		validateRange("delivery.drain_grace", delivery.DrainGrace, time.Second, time.Hour),
		validateRange("limits.read_timeout", limits.ReadTimeout, time.Second, 5*time.Minute),
		validateRange("limits.write_timeout", limits.WriteTimeout, 100*time.Millisecond, 5*time.Minute),
		validateRange("limits.request_timeout", limits.RequestTimeout, time.Second, time.Minute),
		limits.validateIdleTimeout(),
		c.Server.validate(),
	)
}

// validateRange returns an error if the value of a key of the configuration is not
// between low and high.
func validateRange[T cmp.Ordered](key string, value, low, high T) error {
	if value < low || value > high {
		return fmt.Errorf("%s is %v; must be %v to %v", key, value, low, high)
	}
	return nil
}

func (c LimitsConfig) validateIdleTimeout() error {
	if c.IdleTimeout != 0 && c.IdleTimeout < 10*time.Second {
		return fmt.Errorf("limits.idle_timeout is %s; must be 0 or at least 10s", duration.Format(c.IdleTimeout))
	}
	return nil
}
