package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// Pair is a certificate and its private key, both PEM.
type Pair struct{ Cert, Key []byte }

// Authority signs the certificates of one yard.
type Authority struct {
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Leaf describes a certificate to be issued.
type Leaf struct {
	// Name is the name of the member or client. In a member's certificate it is also
	// a DNS name, by which other members identify it.
	Name string
	// Hosts are the host names and addresses of a member.
	Hosts []string
	// Member allows the certificate to be used by servers and clients. Without it the
	// certificate is only for clients, and contains no DNS names and addresses.
	Member bool
	// Lifetime is how long the certificate is valid, at most until the authority's
	// expires.
	Lifetime time.Duration
}

// skew is how far in the past a new certificate becomes valid, to allow for clocks
// of other hosts that are slow.
const skew = 5 * time.Minute

// NewAuthority creates a self-signed authority that is valid for lifetime from now on,
// and returns it with the content of its files.
func NewAuthority(name string, lifetime time.Duration, now time.Time) (*Authority, Pair, error) {
	template := &x509.Certificate{
		Subject: subject(name), NotBefore: now.Add(-skew), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a := &Authority{Cert: template}
	pair, err := a.sign(template)
	if err != nil {
		return nil, Pair{}, err
	}
	a, err = ReadAuthority(pair)
	return a, pair, err
}

// ReadAuthority returns the authority whose files have the content p. It returns an
// error if they are malformed, not an authority's, or do not belong together.
func ReadAuthority(p Pair) (*Authority, error) {
	cert, err := Parse(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if !cert[0].IsCA {
		return nil, errors.New("the certificate is not an authority's")
	}
	block, _ := pem.Decode(p.Key)
	if block == nil {
		return nil, errors.New("the key is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok || !private.PublicKey.Equal(cert[0].PublicKey) {
		return nil, errors.New("the key does not belong to the certificate")
	}
	return &Authority{Cert: cert[0], key: private}, nil
}

// Issue returns a new certificate, signed by the authority, and its key. The
// certificate is valid from skew before now until l.Lifetime after it, but not beyond
// the validity of the authority's own. Every certificate can be used by a client, a
// member's also by a server.
func (a *Authority) Issue(l Leaf, now time.Time) (Pair, error) {
	template := &x509.Certificate{
		Subject: subject(l.Name), NotBefore: now.Add(-skew), NotAfter: now.Add(l.Lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if template.NotAfter.After(a.Cert.NotAfter) {
		template.NotAfter = a.Cert.NotAfter
	}
	if template.NotBefore.Before(a.Cert.NotBefore) {
		template.NotBefore = a.Cert.NotBefore
	}
	if l.Member {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = []string{l.Name}
		for _, host := range l.Hosts {
			if ip := net.ParseIP(host); ip != nil {
				template.IPAddresses = append(template.IPAddresses, ip)
			} else if host != l.Name {
				template.DNSNames = append(template.DNSNames, host)
			}
		}
	}
	return a.sign(template)
}

// sign generates a key for template and signs it with the authority's key, or with
// the new key itself if the authority has none yet.
func (a *Authority) sign(template *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate a key: %w", err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return Pair{}, fmt.Errorf("generate a serial number: %w", err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.Cert, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, fmt.Errorf("sign the certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key: %w", err)
	}
	return Pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}

func subject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"Yardmaster"}, CommonName: name}
}

// Parse returns the certificates in a PEM text. Without any it returns an error; blocks
// of other types are ignored.
func Parse(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return all, nil
}
