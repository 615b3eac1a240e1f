package node

import (
	"crypto/tls"
	"errors"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
)

// certificates are the certificate stores of the node's listeners, nil for a listener
// without TLS. The edge keeps its own.
type certificates struct{ cluster, nats, http *certs.Store }

// openCertificates reads the certificate files of all listeners except the edge.
func (n *Node) openCertificates() (err error) {
	if c := n.cfg.Cluster.TLS; c.IsSet() && n.cfg.Clustered() {
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
