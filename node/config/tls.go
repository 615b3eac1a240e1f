package config

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/edge"
)

// MemberTLS names the PEM files with which members authenticate each other at
// NATS routes and at the Raft port. Set all three or none, and the same on all
// members: a member with TLS does not talk to one without. The files are read at the
// start and again when they change.
type MemberTLS struct {
	// CAFile holds the certificate authorities that sign members' certificates.
	CAFile string `toml:"ca_file"`
	// CertFile is this member's certificate, followed by the intermediate ones up
	// to its root. It carries the member's name as a DNS name and is valid for
	// server and client authentication.
	CertFile string `toml:"cert_file"`
	// KeyFile is its private key.
	KeyFile string `toml:"key_file"`
}

func (c MemberTLS) IsSet() bool { return c != MemberTLS{} }

// validate checks that either all three files are named or none.
func (c MemberTLS) validate() error {
	if !c.IsSet() {
		return nil
	}
	for _, f := range []struct{ key, path string }{{"ca_file", c.CAFile}, {"cert_file", c.CertFile}, {"key_file", c.KeyFile}} {
		if f.path == "" {
			return fmt.Errorf("cluster.tls.%s is missing; ca_file, cert_file and key_file go together, and 'yardmaster cert' makes them", f.key)
		}
	}
	return nil
}

// validateTLS checks that the TLS table of a listener has both files or none.
func validateTLS(table string, c edge.TLSConfig) error {
	switch {
	case c == edge.TLSConfig{}:
		return nil
	case c.CertFile == "":
		return fmt.Errorf("%s.cert_file is missing; it and key_file name the listener's certificate and key, and 'yardmaster cert node' makes them", table)
	case c.KeyFile == "":
		return fmt.Errorf("%s.key_file is missing; it names the private key of %s.cert_file", table, table)
	}
	return nil
}
