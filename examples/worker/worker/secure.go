package worker

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// token is what the edges are shown; a newline at a file's end is no part of it.
func (o *Options) token() (string, error) {
	if o.Secret == "" {
		return o.Token, nil
	}
	if o.Token != "" {
		return "", &OptionError{"token-file", "and --token are both given: give one of them"}
	}
	text, err := os.ReadFile(o.Secret)
	if err != nil {
		return "", &OptionError{"token-file", "cannot be read: " + err.Error()}
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// tlsConfig is how the edges are spoken to: nil is plain TCP. Whoever names a
// file wants TLS.
func (o *Options) tlsConfig() (*tls.Config, error) {
	if !o.TLS && o.TLSCA == "" && o.TLSCert == "" && o.TLSKey == "" {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLSCA != "" {
		text, err := os.ReadFile(o.TLSCA)
		if err != nil {
			return nil, &OptionError{"tls-ca", "cannot be read: " + err.Error()}
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return nil, &OptionError{"tls-ca", fmt.Sprintf("%s holds no certificate: it must be PEM", o.TLSCA)}
		}
	}
	switch {
	case o.TLSCert == "" && o.TLSKey == "":
		return cfg, nil
	case o.TLSKey == "":
		return nil, &OptionError{"tls-key", "is not given: name the private key of --tls-cert"}
	case o.TLSCert == "":
		return nil, &OptionError{"tls-cert", "is not given: name the certificate of --tls-key"}
	}
	own, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
	if err != nil {
		return nil, &OptionError{"tls-cert", fmt.Sprintf("and --tls-key are no pair: %v", err)}
	}
	cfg.Certificates = []tls.Certificate{own}
	return cfg, nil
}
