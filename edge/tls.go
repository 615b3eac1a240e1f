package edge

import (
	"errors"

	"yardmaster/internal/certs"
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

// files names them for the store that reads them.
func (t TLSConfig) files() certs.Files {
	return certs.Files{Door: "edge", Table: "server.tls", Cert: t.CertFile, Key: t.KeyFile, CA: t.ClientCAFile}
}
