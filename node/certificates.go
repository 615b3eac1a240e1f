package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
)

// MemberTLSConfig names the PEM files with which members authenticate each other at
// NATS routes and at the Raft port. Set all three or none, and the same on all
// members: a member with TLS does not talk to one without. The files are read at the
// start and again when they change.
type MemberTLSConfig struct {
	// CAFile holds the certificate authorities that sign members' certificates.
	CAFile string `toml:"ca_file"`
	// CertFile is this member's certificate, followed by the intermediate ones up
	// to its root. It carries the member's name as a DNS name and is valid for
	// server and client authentication.
	CertFile string `toml:"cert_file"`
	// KeyFile is its private key.
	KeyFile string `toml:"key_file"`
}

func (c MemberTLSConfig) isSet() bool { return c != MemberTLSConfig{} }

func (c MemberTLSConfig) validate() error {
	if !c.isSet() {
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

// certificates are the certificate stores of the node's listeners, nil for a listener
// without TLS. The edge keeps its own.
type certificates struct{ cluster, nats, http *certs.Store }

// openCertificates reads the certificate files of all listeners except the edge.
func (n *Node) openCertificates() (err error) {
	if c := n.cfg.Cluster.TLS; c.isSet() && n.cfg.Clustered() {
		n.certs.cluster, err = certs.Open(certs.Files{
			Listener: "cluster", Table: "cluster.tls", Cert: c.CertFile, Key: c.KeyFile, CA: c.CAFile, CAKey: "ca_file", Member: n.cfg.Node.Name,
		}, n.log)
		if err != nil {
			return err
		}
	}
	open := func(listener string, c edge.TLSConfig) (*certs.Store, error) {
		if (c == edge.TLSConfig{}) {
			return nil, nil
		}
		return certs.Open(certs.Files{Listener: listener, Table: listener + ".tls", Cert: c.CertFile, Key: c.KeyFile, CA: c.ClientCAFile}, n.log)
	}
	var errNATS, errHTTP error
	n.certs.nats, errNATS = open("nats", n.cfg.NATS.TLS)
	n.certs.http, errHTTP = open("http", n.cfg.HTTP.TLS)
	return errors.Join(errNATS, errHTTP)
}

// serverTLS returns a listener's TLS configuration, or nil without certificates.
func serverTLS(s *certs.Store) *tls.Config {
	if s == nil {
		return nil
	}
	return s.Server()
}

// certStores returns the certificate stores of all listeners that have one.
func (n *Node) certStores() (stores []*certs.Store) {
	for _, s := range []*certs.Store{n.certs.cluster, n.certs.nats, n.certs.http, n.edge.Certificates()} {
		if s != nil {
			stores = append(stores, s)
		}
	}
	return stores
}

// certCheckInterval is how often certificate files are checked at idle listeners.
const certCheckInterval = time.Minute

// watchCertificates reloads replaced certificate files and logs a warning before one
// expires, also at listeners to which no client connects.
func (n *Node) watchCertificates(ctx context.Context) error {
	tick := time.NewTicker(certCheckInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, s := range n.certStores() {
				s.Refresh(now)
			}
		}
	}
}

// addPeerInfo adds what this node has received from its peers to members.
func (n *Node) addPeerInfo(members []api.MemberStatus) {
	peers := map[string]consensus.Contact{n.cfg.Node.Name: {Build: consensus.Build{Version: n.version}, TLS: n.certs.cluster != nil}}
	if listener := n.id.Listener(); listener != nil {
		for _, p := range listener.Contacts() {
			peers[p.Name] = p
		}
	}
	for i := range members {
		p := peers[members[i].Name]
		members[i].Version, members[i].TLS, members[i].Refused = p.Build.Version, p.TLS, p.Refused
	}
}

// certificateWarnings returns a text for each certificate that has expired or expires
// soon. They do not make the node unready: existing connections go on.
func (n *Node) certificateWarnings(now time.Time) (warnings []string) {
	for _, s := range n.certStores() {
		if text := s.Warning(now); text != "" {
			warnings = append(warnings, text)
		}
	}
	return warnings
}
