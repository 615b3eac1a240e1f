package edge

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// testCA signs certificates for a test. They are also valid at the start of
// synctest's fake time.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	i := new(testCA)
	i.key = newKey(t)
	plan := plan("the test's authority")
	plan.IsCA, plan.BasicConstraintsValid, plan.KeyUsage = true, true, x509.KeyUsageCertSign
	i.cert, i.pem = i.sign(t, plan, plan, i.key)
	return i
}

func plan(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2190, 1, 1, 0, 0, 0, 0, time.UTC),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (i *testCA) sign(t *testing.T, plan, parent *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, string) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, plan, parent, &key.PublicKey, i.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// issue returns a certificate and its key, both PEM.
func (i *testCA) issue(t *testing.T, plan *x509.Certificate) (cert, key string) {
	t.Helper()
	own := newKey(t)
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	_, cert = i.sign(t, plan, i.cert, own)
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// pair returns a certificate for a client.
func (i *testCA) pair(t *testing.T, name string) tls.Certificate {
	t.Helper()
	cert, key := i.issue(t, plan(name))
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// client returns a configuration that trusts the servers named name of this CA.
func (i *testCA) client(name string, shows ...tls.Certificate) *tls.Config {
	trusted := x509.NewCertPool()
	trusted.AddCert(i.cert)
	return &tls.Config{RootCAs: trusted, ServerName: name, Certificates: shows}
}

// newFiles returns paths for a test's certificates.
func newFiles(t *testing.T) TLSConfig {
	dir := t.TempDir()
	return TLSConfig{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t TLSConfig) write(test *testing.T, cert, key string) {
	test.Helper()
	write(test, t.CertFile, cert)
	write(test, t.KeyFile, key)
}

// overTLS returns the configuration of a server "edge" with a certificate of
// this CA.
func (i *testCA) overTLS(t *testing.T) Config {
	files := newFiles(t)
	cert, key := i.issue(t, plan("edge"))
	files.write(t, cert, key)
	return Config{Server: ServerConfig{TLS: files}}
}
