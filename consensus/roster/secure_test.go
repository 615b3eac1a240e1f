package roster

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

	"yardmaster/internal/certs"
	"yardmaster/internal/testlog"
)

// issuer makes certificates for a test's members.
type issuer struct {
	*certs.Authority
	ca []byte
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	a, pair, err := certs.NewAuthority("test", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{a, pair.Cert}
}

// files writes a certificate, its key and the authorities that its holder
// believes.
func (i *issuer) files(t *testing.T, leaf certs.Leaf, at time.Time) certs.Files {
	t.Helper()
	if leaf.Life == 0 {
		leaf.Life = time.Hour
	}
	pair, err := i.Issue(leaf, at)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := certs.Files{
		Door: "cluster", Table: "cluster.tls", CAKey: "ca_file",
		Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem"),
	}
	for name, text := range map[string][]byte{f.Cert: pair.Cert, f.Key: pair.Key, f.CA: i.ca} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func opened(t *testing.T, f certs.Files) *certs.Store {
	t.Helper()
	s, err := certs.Open(f, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (i *issuer) member(t *testing.T, name string) *certs.Store {
	t.Helper()
	return opened(t, i.files(t, certs.Leaf{Name: name, Member: true}, time.Now()))
}

// site's members form with certificates, and talk of their builds.
func TestSecure_Forms(t *testing.T) {
	s, ca := newSite(t, "n1", "n2", "n3"), newIssuer(t)
	ctx := deadline(t)
	var all []<-chan identified
	for _, m := range s.members {
		cfg := s.config(m.Name)
		cfg.Certificates, cfg.Build = ca.member(t, m.Name), Build{"v-" + m.Name, 3}
		all = append(all, start(ctx, cfg))
	}
	var ids []*Identity
	for _, c := range all {
		ids = append(ids, wait(t, c))
	}
	out, err := ids[0].Door().Dial(ids[1].ID(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := ids[1].Door().Accept()
	if err != nil {
		t.Fatal(err)
	}
	go out.Write([]byte("raft"))
	var b [4]byte
	if _, err := in.Read(b[:]); err != nil || string(b[:]) != "raft" {
		t.Fatalf("read %q, %v", b, err)
	}
	for _, p := range ids[0].Door().Heard() {
		if !p.TLS || p.Build != (Build{"v-" + p.Name, 3}) || p.Refused != "" {
			t.Errorf("knows %+v", p)
		}
	}
}

// pair is a formed member, and another of its yard whose door is made by hand.
type pair struct {
	n1, n2             *Door
	addr1, addr2       string
	log1, log2         *testlog.Recorder
	certs1, certs2     *certs.Store
	build1, build2     Build
	refused12, refuses string
}

// open makes both doors as they would be in a formed yard.
func (p *pair) open(t *testing.T) {
	t.Helper()
	seats := []Seat{{"n1", "00000001"}, {"n2", "00000002"}}
	var lns []net.Listener
	var members []Member
	for _, name := range []string{"n1", "n2"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		lns = append(lns, ln)
		members = append(members, Member{name, ln.Addr().String()})
	}
	door := func(i int, build Build, store *certs.Store) (*Door, *testlog.Recorder) {
		log, said := testlog.NewRecorder(t)
		h := hello{Yard: "yard", Node: seats[i].Node, Dir: seats[i].Dir, YardID: yardID("yard", seats), Roster: seats, Build: build}
		d := newDoor(lns[i], h, members, store, log)
		t.Cleanup(func() { d.Close() })
		return d, said
	}
	p.addr1, p.addr2 = members[0].Addr, members[1].Addr
	p.n1, p.log1 = door(0, p.build1, p.certs1)
	p.n2, p.log2 = door(1, p.build2, p.certs2)
}

// Whoever calls, both sides say in their logs why they do not talk.
func TestDoor_MisfitsAreToldOnBothSides(t *testing.T) {
	ca, other := newIssuer(t), newIssuer(t)
	expired := opened(t, ca.files(t, certs.Leaf{Name: "n2", Member: true, Life: time.Minute}, time.Now().Add(-2*time.Minute)))
	client := opened(t, ca.files(t, certs.Leaf{Name: "n2"}, time.Now()))
	for name, c := range map[string]struct {
		pair
		hears, says string // n2, who calls; n1, who answers
	}{
		"only n1 has TLS":      {pair{certs1: ca.member(t, "n1")}, wantsTLS, wantsTLS},
		"only n2 has TLS":      {pair{certs2: ca.member(t, "n2")}, lacksTLS, lacksTLS},
		"another's":            {pair{certs1: ca.member(t, "n1"), certs2: ca.member(t, "n3")}, `is called by "n2" with the certificate of n3`, `with the certificate of n3`},
		"a client's":           {pair{certs1: ca.member(t, "n1"), certs2: client}, `is called by "n2" with the certificate of "n2"`, `with the certificate of "n2"`},
		"a stranger's":         {pair{certs1: ca.member(t, "n1"), certs2: other.member(t, "n2")}, "unknown authority", "bad certificate"},
		"one that has ended":   {pair{certs1: ca.member(t, "n1"), certs2: expired}, "expired", "expired"},
		"level 2 to level 1":   {pair{build1: Build{"v1", 1}, build2: Build{"v2", 2}}, "runs build v1, protocol level 1, and the other side build v2, protocol level 2", "protocol level 2"},
		"a build of no level":  {pair{build1: Build{"v1", 1}}, "names no protocol level", "names no protocol level"},
		"called with no level": {pair{build2: Build{"v2", 1}}, "names no protocol level", "names no protocol level"},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.pair
			p.open(t)
			for purpose, call := range map[string]func() error{
				forRaft: func() error { _, err := p.n2.Dial("n1-00000001", 5*time.Second); return err },
				probe:   func() error { _, err := p.n2.ask(p.addr1); return err },
			} {
				var refused *RefusedError
				if err := call(); err == nil || !strings.Contains(err.Error(), c.hears) || !errors.As(err, &refused) {
					t.Errorf("%s: %v; want %q", purpose, err, c.hears)
				}
			}
			for deadline := time.Now().Add(10 * time.Second); !said(p.log1, c.says); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("n1 says %q; want %q", p.log1.Lines(slog.LevelWarn), c.says)
				}
			}
			if got := p.log2.Lines(slog.LevelWarn); len(got) != 1 {
				t.Errorf("n2 says %q", got)
			}
		})
	}
}

// Who calls himself something else each time, or another build, fills nobody's log.
func TestDoor_StrangersFillNoLog(t *testing.T) {
	for name, p := range map[string]pair{"without TLS": {}, "with TLS": {certs1: newIssuer(t).member(t, "n1")}} {
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
				stranger := hello{Purpose: forRaft, Yard: "yard", Node: fmt.Sprintf("x%d", i), Build: Build{"v9", 9}}
				member := hello{Purpose: forRaft, Yard: "yard", Node: "n2", Dir: fmt.Sprintf("0000000%d", i), Build: Build{fmt.Sprintf("v9.%d", i), 9}}
				for _, h := range []hello{stranger, member} {
					if answer := call(h); answer.Refused == "" {
						t.Errorf("%s is let in: %+v", h.Node, answer)
					}
				}
			}
			call(hello{Node: strings.Repeat("x", 64)})
			call(hello{Node: "n2", Build: Build{strings.Repeat("x", maxVersion+1), 9}})
			p.n1.Close() // all that is said is said
			if got := p.log1.Lines(slog.LevelWarn); len(got) > 3 || said(p.log1, "xxx") {
				t.Errorf("n1 says %q; want a line about strangers, and two of n2: its build, and its directory", got)
			}
		})
	}
}

func said(log *testlog.Recorder, text string) bool {
	return strings.Contains(fmt.Sprint(log.Lines(slog.LevelWarn)), text)
}

// Two versions of one level talk, and each is known.
func TestDoor_VersionsOfOneLevel(t *testing.T) {
	p := pair{build1: Build{"v1.2", 4}, build2: Build{"v1.3", 4}}
	p.open(t)
	conn, err := p.n2.Dial("n1-00000001", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if got := p.n2.Heard(); len(got) != 1 || got[0].Build.Version != "v1.2" || got[0].TLS {
		t.Errorf("n2 knows %+v", got)
	}
	if got := p.n1.Heard(); len(got) != 1 || got[0].Build.Version != "v1.3" {
		t.Errorf("n1 knows %+v", got)
	}
}

// A replaced certificate, and authorities that were added, count for the next
// connection; nobody is started anew for that.
func TestSecure_Rotation(t *testing.T) {
	old, renewed := newIssuer(t), newIssuer(t)
	f1, f2 := old.files(t, certs.Leaf{Name: "n1", Member: true}, time.Now()), old.files(t, certs.Leaf{Name: "n2", Member: true}, time.Now())
	p := pair{certs1: opened(t, f1), certs2: opened(t, f2)}
	p.open(t)
	talk := func(want error) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			_, err := p.n2.ask(p.addr1)
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
	next, err := renewed.Issue(certs.Leaf{Name: "n1", Member: true, Life: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write(f1.Key, next.Key)
	write(f1.Cert, next.Cert)
	talk(errors.New("n2 does not believe the new authority yet"))
	write(f2.CA, append(old.ca, renewed.ca...))
	talk(nil)
	if shown := shownBy(t, p.addr1); shown != renewed.Cert.Subject.String() {
		t.Errorf("n1's certificate is signed by %s", shown)
	}
}

// shownBy is who has signed the certificate that is shown at addr.
func shownBy(t *testing.T, addr string) string {
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
