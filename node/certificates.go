package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"yardmaster/consensus"
	"yardmaster/edge"
	"yardmaster/internal/certs"
)

// MemberTLSConfig names PEM files with which members show each other who they
// are, at NATS routes and at the Raft port. All three or none; the same for all
// members: one that has them talks to none that has not. They are read at the
// start and again when they change.
type MemberTLSConfig struct {
	// CAFile holds the authorities of members' certificates.
	CAFile string `toml:"ca_file"`
	// CertFile is this member's certificate, then those that lead to its root.
	// It carries the member's name as a DNS name, and is good for a server and
	// for a client.
	CertFile string `toml:"cert_file"`
	// KeyFile is its private key.
	KeyFile string `toml:"key_file"`
}

func (c MemberTLSConfig) given() bool { return c != MemberTLSConfig{} }

func (c MemberTLSConfig) validate() error {
	if !c.given() {
		return nil
	}
	for _, f := range []struct{ key, path string }{{"ca_file", c.CAFile}, {"cert_file", c.CertFile}, {"key_file", c.KeyFile}} {
		if f.path == "" {
			return fmt.Errorf("cluster.tls.%s is missing; ca_file, cert_file and key_file go together, and 'yardmaster cert' makes them", f.key)
		}
	}
	return nil
}

// validateTLS says what is missing in the table that has a door's certificate.
func validateTLS(table string, c edge.TLSConfig) error {
	switch {
	case c == edge.TLSConfig{}:
		return nil
	case c.CertFile == "":
		return fmt.Errorf("%s.cert_file is missing; it and key_file name what the door shows, and 'yardmaster cert node' makes them", table)
	case c.KeyFile == "":
		return fmt.Errorf("%s.key_file is missing; it names the private key of %s.cert_file", table, table)
	}
	return nil
}

// certificates are what the node's doors show; nil where no TLS is spoken. The
// edge has its own.
type certificates struct{ cluster, nats, http *certs.Store }

// openCertificates reads the files of all doors but the edge's.
func (n *Node) openCertificates() (err error) {
	if c := n.cfg.Cluster.TLS; c.given() && n.cfg.Clustered() {
		n.certs.cluster, err = certs.Open(certs.Files{
			Door: "cluster", Table: "cluster.tls", Cert: c.CertFile, Key: c.KeyFile, CA: c.CAFile, CAKey: "ca_file", Member: n.cfg.Node.Name,
		}, n.log)
		if err != nil {
			return err
		}
	}
	open := func(door string, c edge.TLSConfig) (*certs.Store, error) {
		if (c == edge.TLSConfig{}) {
			return nil, nil
		}
		return certs.Open(certs.Files{Door: door, Table: door + ".tls", Cert: c.CertFile, Key: c.KeyFile, CA: c.ClientCAFile}, n.log)
	}
	var errNATS, errHTTP error
	n.certs.nats, errNATS = open("nats", n.cfg.NATS.TLS)
	n.certs.http, errHTTP = open("http", n.cfg.HTTP.TLS)
	return errors.Join(errNATS, errHTTP)
}

// serverTLS is a door's config; nil without certificates.
func serverTLS(s *certs.Store) *tls.Config {
	if s == nil {
		return nil
	}
	return s.Server()
}

// shown are the certificates of all doors that have one.
func (n *Node) shown() (stores []*certs.Store) {
	for _, s := range []*certs.Store{n.certs.cluster, n.certs.nats, n.certs.http, n.edge.Certificates()} {
		if s != nil {
			stores = append(stores, s)
		}
	}
	return stores
}

// lookAtCertificates is how often files are looked at where nobody connects.
const lookAtCertificates = time.Minute

// watchCertificates takes up replaced files, and warns of those that end soon,
// also where nobody connects.
func (n *Node) watchCertificates(ctx context.Context) error {
	tick := time.NewTicker(lookAtCertificates)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, s := range n.shown() {
				s.Look(now)
			}
		}
	}
}

// tellTalks adds to members what this node has heard of them.
func (n *Node) tellTalks(members []MemberStatus) {
	talks := map[string]consensus.Heard{n.cfg.Node.Name: {Build: consensus.Build{Version: n.version}, TLS: n.certs.cluster != nil}}
	if door := n.id.Door(); door != nil {
		for _, h := range door.Heard() {
			talks[h.Name] = h
		}
	}
	for i := range members {
		h := talks[members[i].Name]
		members[i].Version, members[i].TLS, members[i].Refused = h.Build.Version, h.TLS, h.Refused
	}
}

// certificateWarnings tells of certificates that end soon or have ended. They
// make no node unready: what is connected goes on.
func (n *Node) certificateWarnings(now time.Time) (warnings []string) {
	for _, s := range n.shown() {
		if text := s.Warning(now); text != "" {
			warnings = append(warnings, text)
		}
	}
	return warnings
}
