package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// writePair writes a self-signed certificate for servers and clients, and its key.
func writePair(t *testing.T, cert, key string) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	plan := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, plan, plan, &own.PublicKey, own)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	writeText(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeText(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
}

func writeText(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The flags of worker are sufficient for a node that requires TLS, a client
// certificate and a token; the error for a wrong token names the flag.
func TestWorker_TLS(t *testing.T) {
	unsetNodeVariables(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePair(t, cert, key)
	server, edge := testnet.Address(t), testnet.Address(t)
	host, port, _ := strings.Cut(edge, ":")
	t.Setenv("YARD_SERVER_HOST", host)
	t.Setenv("YARD_SERVER_PORT", port)
	config := filepath.Join(dir, "n1.toml")
	writeText(t, config, fmt.Sprintf("[server]\ntoken = \"sesame\"\n[server.tls]\ncert_file = %q\nkey_file = %[2]q\nclient_ca_file = %[1]q\n", cert, key))
	f := &fakeAPI{url: "nats://" + server} // the real node
	background(t, "node", "--config", config, "--name", "solo", "--data-dir", filepath.Join(dir, "data"), "--nats-listen", server,
		"--raft-listen", "127.0.0.1:1", "--http-listen", "127.0.0.1:0", "--log-level", "error")
	await(t, f, "ready", "health")

	flags := []string{"worker", "--addr", edge, "--queue", "mail", "--tlsca", cert, "--tlscert", cert, "--tlskey", key, "--token"}
	wrong := runLine(t, "", append(flags, "open")...)
	if wrong.code != 1 || !strings.Contains(wrong.err, "UNAUTHORIZED") || !strings.Contains(wrong.err, "--token") {
		t.Errorf("with a wrong token: %+v", wrong)
	}
	background(t, append(flags, "sesame")...)
	await(t, f, "mail", "queue", "list")
	if got := f.run(t, "enqueue", "mail", "echo", "--params", `{"n":1}`, "--wait"); got.code != 0 || !strings.Contains(got.out, `{"n":1}`) {
		t.Errorf("its job: %+v", got)
	}
}
