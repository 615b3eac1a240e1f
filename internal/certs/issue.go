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

// Leaf says for whom a certificate is.
type Leaf struct {
	// Name is the member's or the client's. On a member's certificate it is a
	// DNS name, too, by which other members know it.
	Name string
	// Hosts are names and addresses under which others reach the member.
	Hosts []string
	// Member may serve and dial; others only dial, and carry no name that a
	// member could have.
	Member bool
	// Life is how long it is to be good; never longer than the authority's.
	Life time.Duration
}

// skew is how much later than ours others' clocks may be when a certificate is
// new.
const skew = 5 * time.Minute

// NewAuthority makes an authority of its own root.
func NewAuthority(name string, life time.Duration, now time.Time) (*Authority, Pair, error) {
	plan := &x509.Certificate{
		Subject: subject(name), NotBefore: now.Add(-skew), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	a := &Authority{Cert: plan}
	pair, err := a.sign(plan)
	if err != nil {
		return nil, Pair{}, err
	}
	a, err = ReadAuthority(pair)
	return a, pair, err
}

// ReadAuthority takes an authority from its files' contents.
func ReadAuthority(p Pair) (*Authority, error) {
	cert, err := Parse(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if !cert[0].IsCA {
		return nil, errors.New("the certificate is no authority's")
	}
	block, _ := pem.Decode(p.Key)
	if block == nil {
		return nil, errors.New("the key is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	own, ok := key.(*ecdsa.PrivateKey)
	if !ok || !own.PublicKey.Equal(cert[0].PublicKey) {
		return nil, errors.New("the key does not belong to the certificate")
	}
	return &Authority{Cert: cert[0], key: own}, nil
}

// Issue makes a certificate and its key.
func (a *Authority) Issue(l Leaf, now time.Time) (Pair, error) {
	plan := &x509.Certificate{
		Subject: subject(l.Name), NotBefore: now.Add(-skew), NotAfter: now.Add(l.Life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if plan.NotAfter.After(a.Cert.NotAfter) {
		plan.NotAfter = a.Cert.NotAfter
	}
	if plan.NotBefore.Before(a.Cert.NotBefore) {
		plan.NotBefore = a.Cert.NotBefore
	}
	if l.Member {
		plan.ExtKeyUsage = append(plan.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		plan.DNSNames = []string{l.Name}
		for _, host := range l.Hosts {
			if ip := net.ParseIP(host); ip != nil {
				plan.IPAddresses = append(plan.IPAddresses, ip)
			} else if host != l.Name {
				plan.DNSNames = append(plan.DNSNames, host)
			}
		}
	}
	return a.sign(plan)
}

// sign makes a key for plan and signs with the authority's, which is the same
// if it has none yet.
func (a *Authority) sign(plan *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	if plan.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return Pair{}, fmt.Errorf("draw a serial number: %w", err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, plan, a.Cert, &key.PublicKey, signer)
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

// Parse reads all certificates of a PEM text; there is at least one.
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
		return nil, errors.New("there is no PEM certificate in it")
	}
	return all, nil
}
