package worker

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// token returns the token to send. A newline at the end of a file is removed.
func (o *Options) token() (string, error) {
	if o.TokenFile == "" {
		return o.Token, nil
	}
	if o.Token != "" {
		return "", &OptionError{"token-file", "and --token are both set: use one of them"}
	}
	text, err := os.ReadFile(o.TokenFile)
	if err != nil {
		return "", &OptionError{"token-file", "cannot be read: " + err.Error()}
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// tlsConfig returns the TLS configuration, nil for plain TCP. Any of the TLS
// files implies TLS.
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
	certificate, err := tls.LoadX509KeyPair(o.TLSCert, o.TLSKey)
	if err != nil {
		return nil, &OptionError{"tls-cert", fmt.Sprintf("and --tls-key do not match: %v", err)}
	}
	cfg.Certificates = []tls.Certificate{certificate}
	return cfg, nil
}
