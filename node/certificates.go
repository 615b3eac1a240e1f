package node

import (
	"errors"
	"log/slog"

	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// certificates are the certificate stores of the node's listeners, nil for a listener
// without TLS. The edge keeps its own.
type certificates struct{ cluster, nats, http *certs.Store }

// openCertificates reads the certificate files of all listeners except the edge.
func openCertificates(cfg *config.Config, log *slog.Logger) (s certificates, err error) {
	if c := cfg.Cluster.TLS; c.IsSet() && cfg.Clustered() {
		s.cluster, err = certs.Open(certs.Files{
			Listener: "cluster", Table: "cluster.tls", Cert: c.CertFile, Key: c.KeyFile, CA: c.CAFile, CAKey: "ca_file", Member: cfg.Node.Name,
		}, log)
		if err != nil {
			return s, err
		}
	}
	open := func(listener string, c edge.TLSConfig) (*certs.Store, error) {
		if (c == edge.TLSConfig{}) {
			return nil, nil
		}
		return certs.Open(certs.Files{Listener: listener, Table: listener + ".tls", Cert: c.CertFile, Key: c.KeyFile, CA: c.ClientCAFile}, log)
	}
	var errNATS, errHTTP error
	s.nats, errNATS = open("nats", cfg.NATS.TLS)
	s.http, errHTTP = open("http", cfg.HTTP.TLS)
	return s, errors.Join(errNATS, errHTTP)
}

// stores returns the certificate stores of all listeners that have one.
func (c *certificates) stores(e *edge.Server) (stores []*certs.Store) {
	for _, s := range []*certs.Store{c.cluster, c.nats, c.http, e.Certificates()} {
		if s != nil {
			stores = append(stores, s)
		}
	}
	return stores
}
