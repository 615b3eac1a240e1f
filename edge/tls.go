package edge

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// TLSConfig names PEM files. They are read at the start and again when they
// change.
type TLSConfig struct {
	// CertFile is the server's certificate, then those that lead to its root.
	CertFile string `toml:"cert_file"`
	// KeyFile is the certificate's private key.
	KeyFile string `toml:"key_file"`
	// ClientCAFile holds the authorities of clients' certificates. If it is set,
	// a client has to show a certificate that one of them has signed. Default:
	// none is asked for.
	ClientCAFile string `toml:"client_ca_file"`
}

// secured tells that clients have to speak TLS.
func (c ServerConfig) secured() bool {
	if c.TLSEnabled != nil {
		return *c.TLSEnabled
	}
	return c.TLS.CertFile != ""
}

func (c ServerConfig) validateTLS() error {
	switch t := c.TLS; {
	case c.TLSEnabled != nil && !*c.TLSEnabled:
		return nil
	case t == TLSConfig{} && c.TLSEnabled == nil:
		return nil
	case t.CertFile == "":
		return errors.New("TLS needs a certificate: set cert_file and key_file in [server.tls], or server.tls_enabled = false")
	case t.KeyFile == "":
		return errors.New("server.tls.key_file is missing; it names the private key of server.tls.cert_file")
	}
	return nil
}

// certificates are what the edge shows to its clients and holds them against.
// Whoever renews a certificate replaces the files and is done: connections
// that stand go on, new ones get what lies there now.
type certificates struct {
	files TLSConfig
	log   *slog.Logger
	now   atomic.Pointer[tls.Config]

	mu     sync.Mutex // guards all below; held while files are read
	looked time.Time
	tried  pems // what lay there when they were last read, good or bad
}

// lookEvery is how often the files are looked at while clients connect.
const lookEvery = time.Second

// pems are the contents of the files. Comparing these, and not the files'
// times, misses no change however quick, and sees through links.
type pems struct{ cert, key, ca string }

// loadCertificates reads the files for the first time. The error names the key
// and the file.
func loadCertificates(files TLSConfig, log *slog.Logger) (*certificates, error) {
	c := &certificates{files: files, log: log, looked: time.Now()}
	found, err := files.read()
	if err != nil {
		return nil, err
	}
	c.tried = found
	return c, c.use(found)
}

// config is the server's side of TLS. Tickets would let a client in on the
// strength of files that have been replaced since.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c.look(time.Now())
			return c.now.Load(), nil
		},
	}
}

// look reads the files again if the last look was a while ago. What is broken
// is told once, and what was there before goes on. Only one handshake at a
// time spends time on this.
func (c *certificates) look(now time.Time) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if now.Sub(c.looked) < lookEvery {
		return
	}
	c.looked = now
	found, err := c.files.read()
	if err == nil && found == c.tried {
		return
	}
	if err == nil {
		c.tried = found
		err = c.use(found)
	} else if c.tried != (pems{}) {
		c.tried = pems{} // told; whatever can be read next is news
	} else {
		return
	}
	if err != nil {
		c.log.Warn("edge goes on with the certificates it has: the new ones are no good", "error", err)
		return
	}
	c.log.Info("edge has new certificates", "cert_file", c.files.CertFile)
}

// use makes found what the next handshakes go by, if it is sound.
func (c *certificates) use(found pems) error {
	pair, err := tls.X509KeyPair([]byte(found.cert), []byte(found.key))
	if err != nil {
		return fmt.Errorf("server.tls.cert_file %s and server.tls.key_file %s are no pair: %w", c.files.CertFile, c.files.KeyFile, err)
	}
	cfg := &tls.Config{
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, Certificates: []tls.Certificate{pair},
	}
	if c.files.ClientCAFile != "" {
		cfg.ClientAuth, cfg.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM([]byte(found.ca)) {
			return fmt.Errorf("server.tls.client_ca_file %s holds no certificate; it must be PEM", c.files.ClientCAFile)
		}
	}
	// Clients judge a certificate by their own clocks, so this one decides nothing.
	switch leaf, now := pair.Leaf, time.Now(); {
	case now.After(leaf.NotAfter):
		c.log.Warn("the edge's certificate has expired; clients will refuse it", "cert_file", c.files.CertFile, "expired", leaf.NotAfter)
	case now.Before(leaf.NotBefore):
		c.log.Warn("the edge's certificate is not valid yet; clients will refuse it", "cert_file", c.files.CertFile, "valid_from", leaf.NotBefore)
	}
	c.now.Store(cfg)
	return nil
}

func (t TLSConfig) read() (found pems, err error) {
	for _, f := range [...]struct {
		key, name string
		to        *string
	}{
		{"server.tls.cert_file", t.CertFile, &found.cert},
		{"server.tls.key_file", t.KeyFile, &found.key},
		{"server.tls.client_ca_file", t.ClientCAFile, &found.ca},
	} {
		if f.name == "" {
			continue
		}
		text, err := os.ReadFile(f.name)
		if err != nil {
			return pems{}, fmt.Errorf("%s: %w", f.key, err)
		}
		*f.to = string(text)
	}
	return found, nil
}
