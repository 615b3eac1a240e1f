package peers

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/testlog"
	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

var discardLog = slog.New(slog.DiscardHandler)

// testSite is a set of declared members. Ports and directories are kept when members
// are restarted.
type testSite struct {
	members []Member
	dirs    map[string]string
}

func newTestSite(t *testing.T, names ...string) *testSite {
	t.Helper()
	s := &testSite{dirs: map[string]string{}}
	for _, name := range names {
		s.members = append(s.members, Member{Name: name, Addr: testnet.Address(t)})
		s.dirs[name] = t.TempDir()
	}
	return s
}

func (s *testSite) config(name string) Config {
	i := slices.IndexFunc(s.members, func(m Member) bool { return m.Name == name })
	return Config{Node: name, Dir: s.dirs[name], Listen: s.members[i].Addr, Members: s.members}
}

type identifyResult struct {
	id  *Identity
	err error
}

// start identifies a member in the background; wait returns the result.
func (s *testSite) start(ctx context.Context, name string) <-chan identifyResult {
	return start(ctx, s.config(name))
}

func start(ctx context.Context, cfg Config) <-chan identifyResult {
	c := make(chan identifyResult, 1)
	go func() {
		id, err := Identify(ctx, cfg, discardLog)
		c <- identifyResult{id, err}
	}()
	return c
}

func wait(t *testing.T, c <-chan identifyResult) *Identity {
	t.Helper()
	got := <-c
	if got.err != nil {
		t.Fatal(got.err)
	}
	t.Cleanup(func() { got.id.Close() })
	return got.id
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestIdentify_SingleNodeKeepsDirectory(t *testing.T) {
	cfg := Config{Node: "solo", Dir: filepath.Join(t.TempDir(), "data")}
	first, err := Identify(t.Context(), cfg, discardLog)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Identify(t.Context(), cfg, discardLog); !errors.Is(err, ErrInUse) {
		t.Errorf("second process in the directory: got %v, want ErrInUse", err)
	}
	if err := first.MarkBootstrapped(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	restarted := wait(t, start(t.Context(), cfg))
	if restarted.ServerID() != first.ServerID() || restarted.Yard != first.Yard || restarted.Yard == "" {
		t.Errorf("restart is %s of %q, was %s of %q", restarted.ServerID(), restarted.Yard, first.ServerID(), first.Yard)
	}
	if restarted.Incarnation != first.Incarnation+1 {
		t.Errorf("incarnation %d after %d", restarted.Incarnation, first.Incarnation)
	}
	if !restarted.Bootstrapped() {
		t.Error("forgot that it was bootstrapped")
	}
	if NodeOf(restarted.ServerID()) != "solo" {
		t.Errorf("NodeOf(%q) = %q", restarted.ServerID(), NodeOf(restarted.ServerID()))
	}
}

// TestIdentity_MarkRemovedIsDurable checks that a directory's removal is on the disk when
// MarkRemoved returns nil: one that cannot be synced is an error. The record goes to a
// device, which takes writes and no sync.
func TestIdentity_MarkRemovedIsDurable(t *testing.T) {
	cfg := Config{Node: "solo", Dir: filepath.Join(t.TempDir(), "data")}
	id := wait(t, start(t.Context(), cfg))
	record := filepath.Join(cfg.Dir, identityFile+".new")
	if err := os.Symlink(os.DevNull, record); err != nil {
		t.Fatal(err)
	}
	if err := id.MarkRemoved(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v, want the error of the sync, %v", err, syscall.EINVAL)
	}
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	if err := id.MarkRemoved(); err != nil {
		t.Fatal(err)
	}
	if err := id.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Identify(t.Context(), cfg, discardLog); !errors.As(err, new(*RemovedError)) {
		t.Errorf("the directory starts with %v, want a RemovedError", err)
	}
}

func TestIdentify_BootstrapsInAnyOrder(t *testing.T) {
	s := newTestSite(t, "n1", "n2", "n3")
	ctx := deadline(t)
	third, first := s.start(ctx, "n3"), s.start(ctx, "n1")
	select {
	case got := <-first:
		t.Fatalf("formed without n2: %+v", got)
	case <-time.After(700 * time.Millisecond): // a few rounds of probes
	}
	ids := []*Identity{wait(t, s.start(ctx, "n2")), wait(t, third), wait(t, first)}
	for _, id := range ids {
		if id.Yard != ids[0].Yard || !slices.Equal(id.BootstrapMembers, ids[0].BootstrapMembers) || len(id.BootstrapMembers) != 3 {
			t.Errorf("%s formed %s with %v, another %s with %v", id.Node, id.Yard, id.BootstrapMembers, ids[0].Yard, ids[0].BootstrapMembers)
		}
	}
}

func TestIdentify_FormedStartsWithoutPeers(t *testing.T) {
	s := newTestSite(t, "n1", "n2", "n3")
	s.form(t)
	id := wait(t, s.start(deadline(t), "n2"))
	if len(id.BootstrapMembers) != 3 || id.Incarnation != 2 {
		t.Errorf("restart alone: bootstrap members %v, incarnation %d", id.BootstrapMembers, id.Incarnation)
	}
}

// form starts all members, waits until the cluster has formed and stops them.
func (s *testSite) form(t *testing.T) {
	t.Helper()
	ctx := deadline(t)
	var all []<-chan identifyResult
	for _, m := range s.members {
		all = append(all, s.start(ctx, m.Name))
	}
	var ids []*Identity // none is closed before all have formed
	for _, c := range all {
		ids = append(ids, wait(t, c))
	}
	for _, id := range ids {
		if err := id.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIdentify_LateBootstrapMember(t *testing.T) {
	s := newTestSite(t, "n1", "n2", "n3")
	s.form(t)
	// n3 crashed after the others had formed with it and before it stored that.
	path := filepath.Join(s.dirs["n3"], identityFile)
	i, err := openIdentity(s.dirs["n3"], "yard", "n3")
	if err != nil {
		t.Fatal(err)
	}
	i.record.YardID, i.record.BootstrapMembers = "", nil
	if err := i.save(); err != nil {
		t.Fatal(err)
	}
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := deadline(t)
	n1 := wait(t, s.start(ctx, "n1"))
	n3 := wait(t, s.start(ctx, "n3"))
	if n3.Yard != n1.Yard {
		t.Errorf("joined cluster %s, the others are in %s", n3.Yard, n1.Yard)
	}
	if raw, _ := os.ReadFile(path); !strings.Contains(string(raw), n1.Yard) {
		t.Error("the cluster was not stored")
	}
}

func TestIdentify_EmptyDirOfMember(t *testing.T) {
	s := newTestSite(t, "n1", "n2", "n3")
	s.form(t)
	s.dirs["n3"] = t.TempDir()
	ctx := deadline(t)
	log, recorded := testlog.NewRecorder(t)
	n1, err := Identify(ctx, s.config("n1"), log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n1.Close() })
	_, reason := s.startWaiting(t, s.config("n3"))
	if !strings.Contains(reason, "'yardmaster cluster replace n3'") {
		t.Errorf("waits for %q, want the command that replaces the member", reason)
	}
	if got := recorded.Messages(slog.LevelWarn); len(got) != 1 || !strings.Contains(got[0], "without its data directory") {
		t.Errorf("log of another member: %q", got)
	}
}

// startWaiting starts a member that has to wait, and returns its first hint.
func (s *testSite) startWaiting(t *testing.T, cfg Config) (<-chan identifyResult, string) {
	t.Helper()
	hints := make(chan string, 100)
	cfg.OnWaiting = func(reasons []string) {
		select {
		case hints <- strings.Join(reasons, "; "):
		default:
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := start(ctx, cfg)
	t.Cleanup(cancel)
	for {
		select {
		case got := <-waiting:
			t.Fatalf("does not wait: %v", got.err)
		case hint := <-hints:
			if strings.Contains(hint, "yardmaster cluster") {
				return waiting, hint
			}
		}
	}
}

func TestIdentify_WrongYardOrUnknownMember(t *testing.T) {
	s := newTestSite(t, "n1", "n2", "n3")
	s.form(t)
	ctx := deadline(t)
	n1 := wait(t, s.start(ctx, "n1"))

	other := s.config("n3")
	other.Dir, other.Yard = t.TempDir(), "elsewhere"
	stranger := Config{Node: "n4", Dir: t.TempDir(), Listen: "127.0.0.1:0", Route: "127.0.0.1:2",
		Members: []Member{{"n4", "127.0.0.1:1"}, {"n1", n1.Listener().Addr().String()}}}
	_, err := Identify(ctx, other, discardLog)
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), `yard "elsewhere"`) {
		t.Errorf("got %v, want a refusal that names the yard", err)
	}
	if _, hint := s.startWaiting(t, stranger); !strings.Contains(hint, "'yardmaster cluster add n4 --route 127.0.0.1:2 --raft 127.0.0.1:1'") {
		t.Errorf("waits for %q, want the command that adds it", hint)
	}
}

func TestIdentify_ConflictingConfigsWait(t *testing.T) {
	s := newTestSite(t, "n1", "n2")
	first, cancel := context.WithCancel(t.Context())
	second, cancelSecond := context.WithCancel(t.Context()) // to answer the last probe of the first
	defer cancelSecond()
	n1 := s.start(first, "n1")
	other := s.config("n2")
	other.Members = append(slices.Clone(other.Members), Member{"n3", "127.0.0.1:1"})
	n2 := start(second, other)
	select {
	case got := <-n1:
		t.Fatalf("formed with a member that declares other members: %+v", got)
	case <-time.After(600 * time.Millisecond): // a few rounds of probes
	}
	cancel()
	if got := <-n1; !errors.Is(got.err, context.Canceled) || !strings.Contains(got.err.Error(), "declares other members") {
		t.Errorf("n1: %v", got.err)
	}
	cancelSecond()
	if got := <-n2; got.err == nil {
		t.Error("n2 formed")
	}
}

func TestIdentify_WrongDirectory(t *testing.T) {
	dir := t.TempDir()
	wait(t, start(t.Context(), Config{Node: "n1", Dir: dir})).Close()
	if _, err := Identify(t.Context(), Config{Node: "n2", Dir: dir}, discardLog); err == nil || !strings.Contains(err.Error(), `"n1"`) {
		t.Errorf("directory of another node: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, identityFile), []byte(`{"version":1,`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Identify(t.Context(), Config{Node: "n1", Dir: dir}, discardLog); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("damaged identity: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, identityFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "raft"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Identify(t.Context(), Config{Node: "n1", Dir: dir}, discardLog); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("identity missing, but raft's files present: %v", err)
	}
}

func TestPeerListener_AcceptsRaftOnly(t *testing.T) {
	s := newTestSite(t, "n1", "n2")
	s.form(t)
	ctx := deadline(t)
	n1, n2 := wait(t, s.start(ctx, "n1")), wait(t, s.start(ctx, "n2"))
	out, err := n1.Listener().Dial(n2.ServerID(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := n2.Listener().Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Write([]byte{7}); err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := in.Read(b[:]); err != nil || b[0] != 7 {
		t.Fatalf("read %v, %v", b, err)
	}
	if err := n2.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(b[:]); err == nil {
		t.Error("closing the listener left an accepted connection open")
	}
	if _, err := n2.Listener().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

func TestPeerListener_RefusesUnknownPeers(t *testing.T) {
	s := newTestSite(t, "n1", "n2")
	s.form(t)
	n1 := wait(t, s.start(deadline(t), "n1"))
	wiped := n1.Listener().hello()
	wiped.Node, wiped.Dir = "n2", "00000000"
	foreign := wiped
	foreign.YardID = "feedfeedfeedfeed"
	unknown := wiped
	unknown.Node = "n9"
	for want, h := range map[string]hello{"cluster replace n2": wiped, "belongs to yard": foreign, `no member "n9"`: unknown} {
		ln := testnet.Listen(t)
		caller := newPeerListener(ln, h, s.members, nil, "", discardLog)
		_, err := caller.Dial(n1.ServerID(), time.Second)
		var refused *RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a refusal with %q", err, want)
		}
		caller.Close()
	}
}

func TestPeerListener_VersionMismatch(t *testing.T) {
	id := wait(t, start(t.Context(), Config{Node: "n1", Dir: t.TempDir(), Listen: "127.0.0.1:0"}))
	conn, err := net.Dial("tcp", id.Listener().Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	frame := append([]byte(magic), 9)
	if _, err := conn.Write(binary.BigEndian.AppendUint32(frame, 0)); err != nil {
		t.Fatal(err)
	}
	answer, err := readHello(conn)
	if err != nil || !strings.Contains(answer.Refused, "version 9") {
		t.Errorf("answer %+v, %v", answer, err)
	}
}

func FuzzReadHello(f *testing.F) {
	var good strings.Builder
	if err := writeHello(&good, hello{Yard: "y", Node: "n", Dir: "d", Members: []string{"n"}}); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(good.String()))
	f.Add([]byte("YARD\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := readHello(strings.NewReader(string(raw)))
		if err == nil && h.formed() && h.YardID == "" {
			t.Error("formed without a yard id")
		}
	})
}
