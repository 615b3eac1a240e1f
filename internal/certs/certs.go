// Package certs keeps the certificate that a door shows and the authorities
// that it holds others against. Both come from PEM files and are read again
// when these change: whoever renews a certificate replaces the files and is
// done. Connections that stand go on, new ones get what lies there now.
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

// LookEvery is how often the files are looked at while somebody connects.
const LookEvery = time.Second

// Files names PEM files, and the keys of the configuration that name them.
type Files struct {
	Door  string // whose they are, for the log: "edge"
	Table string // of the configuration: "server.tls"

	Cert string // the certificate, then those that lead to its root
	Key  string // its private key
	CA   string // authorities of who comes, or is gone to; "": nobody is asked for a certificate
	// CAKey is the key in Table that names CA. Default: "client_ca_file".
	CAKey string

	// Member is a name that the certificate has to carry, as a DNS name; "": any.
	Member string
}

func (f Files) key(name string) string { return f.Table + "." + name }

func (f Files) caKey() string {
	if f.CAKey != "" {
		return f.key(f.CAKey)
	}
	return f.key("client_ca_file")
}

// Store is what lies in the files, as far as it is any good.
type Store struct {
	files Files
	log   *slog.Logger
	now   atomic.Pointer[held]

	mu     sync.Mutex // guards all below; held while files are read
	looked time.Time
	tried  pems // what lay there when they were last read, good or bad
	warned time.Time
}

// held is a certificate that can be shown, and whom to believe.
type held struct {
	pair        tls.Certificate
	authorities *x509.CertPool // nil: nobody is asked
}

// pems are the contents of the files. Comparing these, and not the files'
// times, misses no change however quick, and sees through links.
type pems struct{ cert, key, ca string }

// Open reads the files for the first time. The error names the key and the
// file.
func Open(files Files, log *slog.Logger) (*Store, error) {
	s := &Store{files: files, log: log, looked: time.Now()}
	found, err := files.read()
	if err != nil {
		return nil, err
	}
	s.tried = found
	if err := s.use(found); err != nil {
		return nil, err
	}
	s.warn(time.Now())
	return s, nil
}

// Server is the config of one who is dialled. Who comes has to show a
// certificate if there are authorities for that. Tickets would let somebody in
// on the strength of files that have been replaced since.
func (s *Store) Server() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		SessionTicketsDisabled: true,
		ClientAuth:             s.clientAuth(), // what is asked for, for those who look at the config
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			s.Look(time.Now())
			now := s.now.Load()
			return &tls.Config{
				MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, Certificates: []tls.Certificate{now.pair},
				ClientAuth: s.clientAuth(), ClientCAs: now.authorities,
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

// Client is the config of one who dials a member: it shows the certificate,
// and believes the authorities that there are at the time of the handshake.
// The other side's certificate has to carry one of the names that wanted gives
// for the host that was dialled, "" if that was an address; any if wanted is nil.
func (s *Store) Client(wanted func(host string) []string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The library would go by authorities that cannot be replaced, and by
		// the host, which may move. VerifyConnection does the same work by those
		// of now, and by members' names.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			s.Look(time.Now())
			return &s.now.Load().pair, nil
		},
		VerifyConnection: func(c tls.ConnectionState) error {
			s.Look(time.Now())
			if wanted == nil {
				return s.verify(c.PeerCertificates)
			}
			return named(c.PeerCertificates, wanted(c.ServerName), s.verify(c.PeerCertificates))
		},
	}
}

// verify holds a server's certificate against the authorities.
func (s *Store) verify(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return fmt.Errorf("no certificate is shown")
	}
	leaf, between := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	authorities := s.now.Load().authorities
	if authorities == nil { // nil would mean the system's
		authorities = x509.NewCertPool()
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// named wants one of the names on a certificate that is otherwise good.
func named(chain []*x509.Certificate, wanted []string, err error) error {
	if err != nil {
		return err
	}
	leaf := chain[0]
	for _, name := range wanted {
		if Names(leaf, name) {
			return nil
		}
	}
	return fmt.Errorf("its certificate is %s's, and not %s's", Of(leaf), strings.Join(wanted, "'s or "))
}

// Names tells whether a certificate carries a member's name.
func Names(c *x509.Certificate, member string) bool { return slices.Contains(c.DNSNames, member) }

// Of says whose a certificate is, for people.
func Of(c *x509.Certificate) string {
	if len(c.DNSNames) > 0 {
		return strings.Join(c.DNSNames, "/")
	}
	return fmt.Sprintf("%q", c.Subject.CommonName)
}

// Look reads the files again if the last look was a while ago, and warns of a
// certificate that ends soon. What is broken is told once, and what was there
// before goes on. Only one handshake at a time spends time on this.
func (s *Store) Look(now time.Time) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if now.Sub(s.looked) < LookEvery {
		return
	}
	s.looked = now
	s.again()
	s.warn(now)
}

func (s *Store) again() {
	found, err := s.files.read()
	if err == nil && found == s.tried {
		return
	}
	if err == nil {
		s.tried = found
		err = s.use(found)
	} else if s.tried != (pems{}) {
		s.tried = pems{} // told; whatever can be read next is news
	} else {
		return
	}
	if err != nil {
		s.log.Warn("the door goes on with the certificates it has: the new ones are no good", "door", s.files.Door, "error", err)
		return
	}
	s.warned = time.Time{}
	s.log.Info("the door has new certificates", "door", s.files.Door, "cert_file", s.files.Cert, "until", s.Until())
}

// use makes found what the next handshakes go by, if it is sound.
func (s *Store) use(found pems) error {
	f := s.files
	pair, err := tls.X509KeyPair([]byte(found.cert), []byte(found.key))
	if err != nil {
		return fmt.Errorf("%s %s and %s %s are no pair: %w", f.key("cert_file"), f.Cert, f.key("key_file"), f.Key, err)
	}
	if f.Member != "" && !Names(pair.Leaf, f.Member) {
		return fmt.Errorf("%s %s is the certificate of %s, and this is member %s; make its own with 'yardmaster cert node %s'",
			f.key("cert_file"), f.Cert, Of(pair.Leaf), f.Member, f.Member)
	}
	h := &held{pair: pair}
	if f.CA != "" {
		h.authorities = x509.NewCertPool()
		if !h.authorities.AppendCertsFromPEM([]byte(found.ca)) {
			return fmt.Errorf("%s %s holds no certificate; it must be PEM", f.caKey(), f.CA)
		}
	}
	s.now.Store(h)
	return nil
}

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
