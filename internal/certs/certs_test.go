package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const day24 = 24 * time.Hour

// testCA is an authority and a directory for the certificates that it signs.
type testCA struct {
	*Authority
	dir string
	ca  string
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	a, pair, err := NewAuthority("of a test", 100*day24, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d := &testCA{Authority: a, dir: t.TempDir()}
	d.ca = filepath.Join(d.dir, "ca.pem")
	if err := pair.WriteFiles(d.ca, filepath.Join(d.dir, "ca-key.pem"), false); err != nil {
		t.Fatal(err)
	}
	return d
}

// issue signs at a moment, and leaves the pair in files of the name.
func (d *testCA) issue(t *testing.T, l Leaf, at time.Time) Files {
	t.Helper()
	pair, err := d.Issue(l, at)
	if err != nil {
		t.Fatal(err)
	}
	f := Files{Listener: "test", Table: "test.tls", Cert: filepath.Join(d.dir, l.Name+".pem"), Key: filepath.Join(d.dir, l.Name+"-key.pem"), CA: d.ca}
	if err := pair.WriteFiles(f.Cert, f.Key, true); err != nil {
		t.Fatal(err)
	}
	return f
}

func open(t *testing.T, f Files) *Store {
	t.Helper()
	s, err := Open(f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// handshake connects a client and a server and exchanges a byte: with TLS 1.3 a
// client learns only then that it was refused.
func handshake(t *testing.T, server, client *tls.Config) (atServer, atClient error) {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	done := make(chan error, 1)
	go func() {
		defer b.Close()
		s := tls.Server(b, server)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		done <- err
	}()
	c := tls.Client(a, client)
	if atClient = c.Handshake(); atClient == nil {
		_, atClient = c.Read(make([]byte, 1))
	}
	a.Close()
	return <-done, atClient
}

func TestIssue(t *testing.T) {
	d, now := newTestCA(t), time.Now()
	parse := func(l Leaf) *x509.Certificate {
		pair, err := d.Issue(l, now)
		if err != nil {
			t.Fatal(err)
		}
		all, err := Parse(pair.Cert)
		if err != nil {
			t.Fatal(err)
		}
		return all[0]
	}
	member := parse(Leaf{Name: "n1", Hosts: []string{"10.0.0.1", "n1.example.org", "n1"}, Member: true, Lifetime: 30 * day24})
	if got := fmt.Sprint(member.DNSNames, member.IPAddresses); got != "[n1 n1.example.org] [10.0.0.1]" {
		t.Errorf("a member's names are %s", got)
	}
	if member.IsCA || len(member.ExtKeyUsage) != 2 {
		t.Errorf("a member's certificate is for %v", member.ExtKeyUsage)
	}
	client := parse(Leaf{Name: "shop", Lifetime: day24})
	if len(client.DNSNames) > 0 || len(client.ExtKeyUsage) != 1 || client.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth {
		t.Errorf("a client's certificate carries %v and is for %v", client.DNSNames, client.ExtKeyUsage)
	}
	if long := parse(Leaf{Name: "n2", Member: true, Lifetime: 1000 * day24}); long.NotAfter.After(d.Cert.NotAfter) {
		t.Errorf("valid longer than its authority: %s", long.NotAfter)
	}
}

func TestReadAuthority_Refuses(t *testing.T) {
	d := newTestCA(t)
	leaf, err := d.Issue(Leaf{Name: "n1", Member: true, Lifetime: day24}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := NewAuthority("another", day24, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(d.ca)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what string
		pair Pair
		want string
	}{
		{"a member's pair", leaf, "not an authority's"},
		{"another's key", Pair{own, other.Key}, "does not belong"},
		{"no certificate", Pair{[]byte("text"), other.Key}, "no PEM certificate"},
		{"no key", Pair{own, []byte("text")}, "not PEM"},
	} {
		if _, err := ReadAuthority(c.pair); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		leaf Leaf
		good bool
	}{
		{Leaf{Name: "n1", Member: true, Hosts: []string{"10.0.0.1", "::1", "n1.example.org", "*.example.org"}}, true},
		{Leaf{Name: "Shop.Mail_1"}, true},
		{Leaf{Name: "N1", Member: true}, false},
		{Leaf{Name: "-n1", Member: true}, false},
		{Leaf{Name: "../n1"}, false},
		{Leaf{Name: ""}, false},
		{Leaf{Name: "n1", Member: true, Hosts: []string{"10.0.0.1:4222"}}, false},
	} {
		if err := c.leaf.Validate(); (err == nil) != c.good {
			t.Errorf("%+v: %v", c.leaf, err)
		}
	}
}

func TestWriteFiles(t *testing.T) {
	d := newTestCA(t)
	f := d.issue(t, Leaf{Name: "n1", Member: true, Lifetime: day24}, time.Now())
	if err := (Pair{[]byte("c"), []byte("k")}).WriteFiles(f.Cert, f.Key, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("existing files: %v", err)
	}
	for name, mode := range map[string]fs.FileMode{f.Key: 0o600, f.Cert: 0o644} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	left, err := os.ReadDir(d.dir)
	if err != nil || len(left) != 4 {
		t.Errorf("%d files exist, %v", len(left), err)
	}
}

func TestStore_Handshakes(t *testing.T) {
	d, other, now := newTestCA(t), newTestCA(t), time.Now()
	n1 := open(t, d.issue(t, Leaf{Name: "n1", Member: true, Lifetime: 30 * day24}, now))
	n2 := open(t, d.issue(t, Leaf{Name: "n2", Member: true, Lifetime: 30 * day24}, now))
	shop := open(t, d.issue(t, Leaf{Name: "shop", Lifetime: 30 * day24}, now))
	old := open(t, d.issue(t, Leaf{Name: "old", Member: true, Lifetime: day24}, now.Add(-day24-time.Hour)))
	stranger := open(t, other.issue(t, Leaf{Name: "n2", Member: true, Lifetime: day24}, now))
	wants := func(name string) func(string) []string { return func(string) []string { return []string{name} } }
	for _, c := range []struct {
		what   string
		server *Store
		client *tls.Config
		good   bool
	}{
		{"a member and a member", n1, n2.Client(wants("n1")), true},
		{"a member and a client", n1, shop.Client(nil), true},
		{"a member with another name", n1, n2.Client(wants("n3")), false},
		{"a client that serves", shop, n2.Client(nil), false},
		{"a stranger who comes", n1, stranger.Client(nil), false},
		{"a server of another authority", stranger, n1.Client(wants("n2")), false},
		{"who shows nothing", n1, &tls.Config{InsecureSkipVerify: true}, false},
		{"one whose certificate has ended comes", n1, old.Client(nil), false},
		{"a server with an expired certificate", old, n1.Client(wants("old")), false},
	} {
		atServer, atClient := handshake(t, c.server.Server(), c.client)
		if good := atServer == nil && atClient == nil; good != c.good {
			t.Errorf("%s: %v, %v", c.what, atServer, atClient)
		}
	}
}

// TestStore_Renewed replaces the certificate, and then the authority, of a store.
func TestStore_Renewed(t *testing.T) {
	d, now := newTestCA(t), time.Now()
	files := d.issue(t, Leaf{Name: "n1", Member: true, Lifetime: 20 * day24}, now)
	n1 := open(t, files)
	n2 := open(t, d.issue(t, Leaf{Name: "n2", Member: true, Lifetime: 20 * day24}, now))
	was := n1.NotAfter()
	if err := os.WriteFile(files.Cert, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	n1.Refresh(now.Add(time.Hour))
	if !n1.NotAfter().Equal(was) {
		t.Error("with an invalid file, the old certificate is no longer used")
	}
	d.issue(t, Leaf{Name: "n1", Member: true, Lifetime: 40 * day24}, now)
	n1.Refresh(now.Add(2 * time.Hour))
	if !n1.NotAfter().After(was) {
		t.Errorf("the new certificate is not used: not after %s", n1.NotAfter())
	}
	next := newTestCA(t)
	text, err := os.ReadFile(next.ca)
	if err == nil {
		err = os.WriteFile(d.ca, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	n1.Refresh(now.Add(3 * time.Hour))
	if atServer, _ := handshake(t, n1.Server(), n2.Client(nil)); atServer == nil {
		t.Error("a client of the removed authority is admitted")
	}
}

func TestWarning(t *testing.T) {
	d, now := newTestCA(t), time.Now()
	s := open(t, d.issue(t, Leaf{Name: "n1", Member: true, Lifetime: 30 * day24}, now))
	for _, c := range []struct {
		at   time.Time
		want string
	}{
		{now, ""}, {now.Add(15 * day24), ""}, {now.Add(17 * day24), "expires on"},
		{now.Add(31 * day24), "expired on"}, {now.Add(-time.Hour), "not valid before"},
	} {
		if got := s.Warning(c.at); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("at %s: %q, want %q", c.at, got, c.want)
		}
	}
	var out bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&out, nil))
	for hour := range 30 {
		s.logWarning(now.Add(20*day24 + time.Duration(hour)*time.Hour))
	}
	if n := strings.Count(out.String(), "must be replaced"); n != 2 {
		t.Errorf("logged %d times in 30 hours", n)
	}
}
