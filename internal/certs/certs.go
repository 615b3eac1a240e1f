// Package certs provides the certificate of a listener and the authorities that it
// trusts. Both come from PEM files, which are read again when they change: to
// renew a certificate, replace the files. Open connections continue; new ones use
// the new files.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// RefreshInterval is the minimum time between two reads of the files, which happen
// during handshakes.
const RefreshInterval = time.Second

// Files names the PEM files of a listener, and the configuration keys that name
// them.
type Files struct {
	Listener string // name of the listener for the log, such as "edge"
	Table    string // table in the configuration, such as "server.tls"

	Cert string // the certificate, followed by intermediate ones
	Key  string // its private key
	CA   string // trusted authorities of peers; "": clients need no certificate
	// CAKey is the key in Table that names CA; "" is "client_ca_file".
	CAKey string

	// Member is a DNS name that the certificate must contain; "": any.
	Member string
}

// key returns the full configuration key of a file.
func (f Files) key(name string) string { return f.Table + "." + name }

// caKey returns the full configuration key of CA.
func (f Files) caKey() string {
	if f.CAKey != "" {
		return f.key(f.CAKey)
	}
	return f.key("client_ca_file")
}

// Store holds the latest valid content of the files.
type Store struct {
	files   Files
	log     *slog.Logger
	current atomic.Pointer[keyPair]

	mu        sync.Mutex // guards the fields below; held while the files are read
	refreshed time.Time
	lastRead  pems      // content when last read, valid or not
	warned    time.Time // last time that the warning was logged
}

// keyPair is a certificate and the authorities to trust.
type keyPair struct {
	cert        tls.Certificate
	authorities *x509.CertPool // nil: clients need no certificate
}

// pems is the content of the files. Comparing it, and not the files' times,
// detects every change, and works with symbolic links.
type pems struct{ cert, key, ca string }

// Open reads the files. The error names the configuration key and the file.
func Open(files Files, log *slog.Logger) (*Store, error) {
	s := &Store{files: files, log: log, refreshed: time.Now()}
	found, err := files.read()
	if err != nil {
		return nil, err
	}
	s.lastRead = found
	if err := s.install(found); err != nil {
		return nil, err
	}
	s.logWarning(time.Now())
	return s, nil
}

// Server returns the TLS configuration of a server; nil, which is no TLS, for a nil
// Store. It requires a client certificate if there are authorities. Session tickets are
// disabled, because they would admit clients by files that have been replaced since.
func (s *Store) Server() *tls.Config {
	if s == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		SessionTicketsDisabled: true,
		ClientAuth:             s.clientAuth(), // informational; GetConfigForClient decides
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			s.Refresh(time.Now())
			current := s.current.Load()
			return &tls.Config{
				MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, Certificates: []tls.Certificate{current.cert},
				ClientAuth: s.clientAuth(), ClientCAs: current.authorities,
			}, nil
		},
	}
}

func (s *Store) clientAuth() tls.ClientAuthType {
	if s.files.CA == "" {
		return tls.NoClientCert
	}
	return tls.RequireAndVerifyClientCert
}

// Client returns the TLS configuration for connections to members. It presents the
// certificate, and trusts the authorities that are current at the time of the
// handshake. The server's certificate must contain one of the names that names
// returns for the dialled host, which is "" if an IP address was dialled. If names
// is nil, any name is accepted.
func (s *Store) Client(names func(host string) []string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The standard verification uses authorities that cannot be replaced, and the
		// host name, which may change. VerifyConnection verifies with the current
		// authorities and members' names instead.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			s.Refresh(time.Now())
			return &s.current.Load().cert, nil
		},
		VerifyConnection: func(c tls.ConnectionState) error {
			s.Refresh(time.Now())
			if err := s.verify(c.PeerCertificates); err != nil || names == nil {
				return err
			}
			return requireName(c.PeerCertificates[0], names(c.ServerName))
		},
	}
}

// verify verifies a server's certificate chain, its certificate first, with the
// current authorities. Without authorities no chain is valid.
func (s *Store) verify(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return fmt.Errorf("no certificate presented")
	}
	leaf, intermediates := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	authorities := s.current.Load().authorities
	if authorities == nil { // nil would mean the system's authorities
		authorities = x509.NewCertPool()
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// requireName returns an error unless a certificate contains one of names.
func requireName(c *x509.Certificate, names []string) error {
	if slices.ContainsFunc(names, func(name string) bool { return HasName(c, name) }) {
		return nil
	}
	return fmt.Errorf("the certificate is for %s, not for %s", SubjectOf(c), strings.Join(names, " or "))
}

// HasName reports whether a certificate contains a member's name.
func HasName(c *x509.Certificate, member string) bool { return slices.Contains(c.DNSNames, member) }

// SubjectOf returns the name or names in a certificate for messages.
func SubjectOf(c *x509.Certificate) string {
	if len(c.DNSNames) > 0 {
		return strings.Join(c.DNSNames, "/")
	}
	return fmt.Sprintf("%q", c.Subject.CommonName)
}

// Refresh reads the files again if RefreshInterval has passed, and logs a warning
// if the certificate expires soon. Invalid files are logged once, and the previous
// ones stay in use. If another call is in progress, Refresh returns at once.
func (s *Store) Refresh(now time.Time) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if now.Sub(s.refreshed) < RefreshInterval {
		return
	}
	s.refreshed = now
	s.reload()
	s.logWarning(now)
}

// reload reads the files and installs them if they have changed. It logs files that
// cannot be read or are invalid once: lastRead is empty while they cannot be read. The
// caller holds s.mu.
func (s *Store) reload() {
	found, err := s.files.read() // empty after an error
	if found == s.lastRead {
		return
	}
	s.lastRead = found
	if err == nil {
		err = s.install(found)
	}
	if err != nil {
		s.log.Warn("new certificates invalid, keeping the old ones", "listener", s.files.Listener, "err", err)
		return
	}
	s.warned = time.Time{}
	s.log.Info("certificates reloaded", "listener", s.files.Listener, "cert_file", s.files.Cert, "not_after", s.NotAfter())
}

// install validates the content of the files and makes it current.
func (s *Store) install(found pems) error {
	f := s.files
	pair, err := tls.X509KeyPair([]byte(found.cert), []byte(found.key))
	if err != nil {
		return fmt.Errorf("certificate %s %s and key %s %s do not match: %w", f.key("cert_file"), f.Cert, f.key("key_file"), f.Key, err)
	}
	if f.Member != "" && !HasName(pair.Leaf, f.Member) {
		return fmt.Errorf("%s %s is the certificate of %s, but this is member %s; create one with 'yardmaster cert node %s'",
			f.key("cert_file"), f.Cert, SubjectOf(pair.Leaf), f.Member, f.Member)
	}
	kp := &keyPair{cert: pair}
	if f.CA != "" {
		kp.authorities = x509.NewCertPool()
		if !kp.authorities.AppendCertsFromPEM([]byte(found.ca)) {
			return fmt.Errorf("%s %s contains no certificate; it must be PEM", f.caKey(), f.CA)
		}
	}
	s.current.Store(kp)
	return nil
}

// read returns the content of all files that are named. After an error it is empty.
func (f Files) read() (found pems, err error) {
	for _, file := range [...]struct {
		key, name string
		to        *string
	}{
		{f.key("cert_file"), f.Cert, &found.cert}, {f.key("key_file"), f.Key, &found.key}, {f.caKey(), f.CA, &found.ca},
	} {
		if file.name == "" {
			continue
		}
		text, err := os.ReadFile(file.name)
		if err != nil {
			return pems{}, fmt.Errorf("%s: %w", file.key, err)
		}
		*file.to = string(text)
	}
	return found, nil
}
