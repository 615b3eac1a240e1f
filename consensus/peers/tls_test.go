package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// testCA issues certificates for the members of a test.
type testCA struct {
	*certs.Authority
	ca []byte
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	a, pair, err := certs.NewAuthority("test", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &testCA{a, pair.Cert}
}

// files writes a certificate, its key and the CA file to a directory.
func (i *testCA) files(t *testing.T, leaf certs.Leaf, at time.Time) certs.Files {
	t.Helper()
	if leaf.Lifetime == 0 {
		leaf.Lifetime = time.Hour
	}
	pair, err := i.Issue(leaf, at)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := certs.Files{
		Listener: "cluster", Table: "cluster.tls", CAKey: "ca_file",
		Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem"),
	}
	for name, text := range map[string][]byte{f.Cert: pair.Cert, f.Key: pair.Key, f.CA: i.ca} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func openStore(t *testing.T, f certs.Files) *certs.Store {
	t.Helper()
	s, err := certs.Open(f, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (i *testCA) member(t *testing.T, name string) *certs.Store {
	t.Helper()
	return openStore(t, i.files(t, certs.Leaf{Name: name, Member: true}, time.Now()))
}

// TestTLS_Bootstrap checks that members with certificates form a cluster and learn each
// other's builds.
func TestTLS_Bootstrap(t *testing.T) {
	s, ca := newTestSite(t, "n1", "n2", "n3"), newTestCA(t)
	ctx := deadline(t)
	var all []<-chan identifyResult
	for _, m := range s.members {
		cfg := s.config(m.Name)
		cfg.Certificates, cfg.Build = ca.member(t, m.Name), Build{Version: "v-" + m.Name, Level: 3, Zones: "2025c-" + m.Name}
		all = append(all, start(ctx, cfg))
	}
	var ids []*Identity
	for _, c := range all {
		ids = append(ids, wait(t, c))
	}
	out, err := ids[0].Listener().Dial(ids[1].ServerID(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := ids[1].Listener().Accept()
	if err != nil {
		t.Fatal(err)
	}
	go out.Write([]byte("raft"))
	var b [4]byte
	if _, err := in.Read(b[:]); err != nil || string(b[:]) != "raft" {
		t.Fatalf("read %q, %v", b, err)
	}
	for _, p := range ids[0].Listener().Contacts() {
		if !p.TLS || p.Build != (Build{Version: "v-" + p.Name, Level: 3, Zones: "2025c-" + p.Name}) || p.Refused != "" {
			t.Errorf("contact %+v", p)
		}
	}
}

// pair is the listeners of two members of a formed cluster.
type pair struct {
	n1, n2             *PeerListener
	addr1, addr2       string
	log1, log2         *testlog.Recorder
	certs1, certs2     *certs.Store
	build1, build2     Build
	refused12, refuses string
}

// open creates both listeners as they would be in a formed cluster.
func (p *pair) open(t *testing.T) {
	t.Helper()
	ids := []MemberID{{"n1", "00000001"}, {"n2", "00000002"}}
	var lns []net.Listener
	var members []Member
	for _, name := range []string{"n1", "n2"} {
		ln := testnet.Listen(t)
		lns = append(lns, ln)
		members = append(members, Member{name, ln.Addr().String()})
	}
	newListener := func(i int, build Build, store *certs.Store) (*PeerListener, *testlog.Recorder) {
		log, recorded := testlog.NewRecorder(t)
		h := hello{Yard: "yard", Node: ids[i].Node, Dir: ids[i].Dir, YardID: yardID("yard", ids), BootstrapMembers: ids, Build: build}
		l := newPeerListener(lns[i], h, members, store, "", log)
		t.Cleanup(func() { l.Close() })
		return l, recorded
	}
	p.addr1, p.addr2 = members[0].Addr, members[1].Addr
	p.n1, p.log1 = newListener(0, p.build1, p.certs1)
	p.n2, p.log2 = newListener(1, p.build2, p.certs2)
}

// TestPeerListener_MismatchLoggedByBoth checks that both sides log why they refuse each
// other.
func TestPeerListener_MismatchLoggedByBoth(t *testing.T) {
	ca, other := newTestCA(t), newTestCA(t)
	expired := openStore(t, ca.files(t, certs.Leaf{Name: "n2", Member: true, Lifetime: time.Minute}, time.Now().Add(-2*time.Minute)))
	client := openStore(t, ca.files(t, certs.Leaf{Name: "n2"}, time.Now()))
	for name, c := range map[string]struct {
		pair
		callerErr, answererLog string // n2 calls, n1 answers
	}{
		"only n1 has TLS":        {pair{certs1: ca.member(t, "n1")}, reasonTLSRequired, reasonTLSRequired},
		"only n2 has TLS":        {pair{certs2: ca.member(t, "n2")}, reasonNoTLS, reasonNoTLS},
		"another member's":       {pair{certs1: ca.member(t, "n1"), certs2: ca.member(t, "n3")}, `is called by "n2" with the certificate of n3`, `with the certificate of n3`},
		"a client's":             {pair{certs1: ca.member(t, "n1"), certs2: client}, `is called by "n2" with the certificate of "n2"`, `with the certificate of "n2"`},
		"unknown CA":             {pair{certs1: ca.member(t, "n1"), certs2: other.member(t, "n2")}, "unknown authority", "bad certificate"},
		"expired certificate":    {pair{certs1: ca.member(t, "n1"), certs2: expired}, "expired", "expired"},
		"level 2 to level 1":     {pair{build1: Build{Version: "v1", Level: 1}, build2: Build{Version: "v2", Level: 2}}, "runs build v1, protocol level 1, and the other side build v2, protocol level 2", "protocol level 2"},
		"answerer without level": {pair{build1: Build{Version: "v1", Level: 1}}, "names no protocol level", "names no protocol level"},
		"caller without level":   {pair{build2: Build{Version: "v2", Level: 1}}, "names no protocol level", "names no protocol level"},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.pair
			p.open(t)
			for purpose, call := range map[string]func() error{
				purposeRaft:  func() error { _, err := p.n2.Dial("n1-00000001", 5*time.Second); return err },
				purposeProbe: func() error { _, err := p.n2.exchange(p.addr1, purposeProbe); return err },
			} {
				var refused *RefusedError
				if err := call(); err == nil || !strings.Contains(err.Error(), c.callerErr) || !errors.As(err, &refused) {
					t.Errorf("%s: %v; want %q", purpose, err, c.callerErr)
				}
			}
			for deadline := time.Now().Add(10 * time.Second); !logged(p.log1, c.answererLog); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("log of n1 %q; want %q", p.log1.Lines(slog.LevelWarn), c.answererLog)
				}
			}
			if got := p.log2.Lines(slog.LevelWarn); len(got) != 1 {
				t.Errorf("log of n2 %q", got)
			}
		})
	}
}

// TestPeerListener_LogThrottled checks that callers that use another name or build each
// time do not fill the log.
func TestPeerListener_LogThrottled(t *testing.T) {
	for name, p := range map[string]pair{"without TLS": {}, "with TLS": {certs1: newTestCA(t).member(t, "n1")}} {
		t.Run(name, func(t *testing.T) {
			p.open(t)
			call := func(h hello) hello {
				conn, err := net.Dial("tcp", p.addr1)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if err := writeHello(conn, h); err != nil {
					t.Fatal(err)
				}
				answer, _ := readHello(conn)
				return answer
			}
			for i := range 5 {
				stranger := hello{Purpose: purposeRaft, Yard: "yard", Node: fmt.Sprintf("x%d", i), Build: Build{Version: "v9", Level: 9}}
				member := hello{Purpose: purposeRaft, Yard: "yard", Node: "n2", Dir: fmt.Sprintf("0000000%d", i), Build: Build{Version: fmt.Sprintf("v9.%d", i), Level: 9}}
				for _, h := range []hello{stranger, member} {
					if answer := call(h); answer.Refused == "" {
						t.Errorf("%s is accepted: %+v", h.Node, answer)
					}
				}
			}
			call(hello{Node: strings.Repeat("x", 64)})
			call(hello{Node: "n2", Build: Build{Version: strings.Repeat("x", maxVersion+1), Level: 9}})
			p.n1.Close() // waits until everything is logged
			if got := p.log1.Lines(slog.LevelWarn); len(got) > 3 || logged(p.log1, "xxx") {
				t.Errorf("log of n1 %q; want one line about strangers, and two about n2: its build, and its directory", got)
			}
		})
	}
}

func logged(log *testlog.Recorder, text string) bool {
	return strings.Contains(fmt.Sprint(log.Lines(slog.LevelWarn)), text)
}

// TestPeerListener_SameLevel checks that two versions of the same level communicate and
// learn each other's version.
func TestPeerListener_SameLevel(t *testing.T) {
	p := pair{build1: Build{Version: "v1.2", Level: 4}, build2: Build{Version: "v1.3", Level: 4}}
	p.open(t)
	conn, err := p.n2.Dial("n1-00000001", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if got := p.n2.Contacts(); len(got) != 1 || got[0].Build.Version != "v1.2" || got[0].TLS {
		t.Errorf("contacts of n2: %+v", got)
	}
	if got := p.n1.Contacts(); len(got) != 1 || got[0].Build.Version != "v1.3" {
		t.Errorf("contacts of n1: %+v", got)
	}
}

// TestTLS_Rotation checks that a replaced certificate and an added CA apply to the next
// connection, without a restart.
func TestTLS_Rotation(t *testing.T) {
	old, renewed := newTestCA(t), newTestCA(t)
	f1, f2 := old.files(t, certs.Leaf{Name: "n1", Member: true}, time.Now()), old.files(t, certs.Leaf{Name: "n2", Member: true}, time.Now())
	p := pair{certs1: openStore(t, f1), certs2: openStore(t, f2)}
	p.open(t)
	talk := func(want error) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			_, err := p.n2.exchange(p.addr1, purposeProbe)
			if (err == nil) == (want == nil) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v; want %v", err, want)
			}
		}
	}
	talk(nil)
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next, err := renewed.Issue(certs.Leaf{Name: "n1", Member: true, Lifetime: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write(f1.Key, next.Key)
	write(f1.Cert, next.Cert)
	talk(errors.New("n2 does not trust the new CA yet"))
	write(f2.CA, append(old.ca, renewed.ca...))
	talk(nil)
	if shown := serverCertName(t, p.addr1); shown != renewed.Cert.Subject.String() {
		t.Errorf("certificate of n1 is signed by %s", shown)
	}
}

// serverCertName returns the issuer of the certificate that the server at addr
// presents.
func serverCertName(t *testing.T, addr string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Issuer.String()
}
