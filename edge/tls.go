package edge

import (
	"errors"

	"github.com/yardmaster-dev/yardmaster/internal/certs"
)

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

// certFiles returns the files for the certificate store.
func (t TLSConfig) certFiles() certs.Files {
	return certs.Files{Listener: "edge", Table: "server.tls", Cert: t.CertFile, Key: t.KeyFile, CA: t.ClientCAFile}
}
