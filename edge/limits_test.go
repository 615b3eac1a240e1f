package edge

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/internal/logthrottle"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// addrConn is a connection with a chosen remote address.
type addrConn struct {
	net.Conn
	addr net.Addr
}

func (f addrConn) RemoteAddr() net.Addr { return f.addr }

// connectFrom connects from the given address.
func (h *harness) connectFrom(ip string) *peer {
	ours, theirs := net.Pipe()
	h.ln.conns <- addrConn{theirs, &net.TCPAddr{IP: net.ParseIP(ip), Port: 40000}}
	return h.connectOver(ours)
}

func TestLimits_PerAddress(t *testing.T) {
	bubble(t, Config{Limits: LimitsConfig{PerAddress: 2}}, func(r *harness) {
		one := r.connectFrom("10.0.0.1")
		one.ask(overhop.THello, nil, overhop.THi)
		r.connectFrom("::ffff:10.0.0.1").ask(overhop.THello, nil, overhop.THi)
		for range 100 {
			r.connectFrom("10.0.0.1").expectClosed()
		}
		r.connectFrom("::ffff:10.0.0.1").expectClosed()
		r.connectFrom("10.0.0.2").ask(overhop.THello, nil, overhop.THi)
		r.connectFrom("2001:db8::1").ask(overhop.THello, nil, overhop.THi)
		one.nc.Close()
		synctest.Wait()
		r.connectFrom("10.0.0.1").ask(overhop.THello, nil, overhop.THi)
		if lines := r.log.Messages(slog.LevelWarn); len(lines) != 1 {
			t.Errorf("a hundred refusals are logged as %q", lines)
		}
		time.Sleep(logthrottle.Interval)
		r.connectFrom("::ffff:10.0.0.2")
		r.connectFrom("::ffff:10.0.0.2").expectClosed()
		if lines := r.log.Messages(slog.LevelWarn); len(lines) != 2 {
			t.Errorf("and another, later, as %q", lines)
		}
	})
}

func TestLimits_Total(t *testing.T) {
	bubble(t, Config{Limits: LimitsConfig{Connections: 3}}, func(r *harness) {
		first := r.connectFrom("10.0.0.1")
		first.ask(overhop.THello, nil, overhop.THi)
		for _, ip := range []string{"10.0.0.2", "10.0.0.3"} {
			r.connectFrom(ip).ask(overhop.THello, nil, overhop.THi)
		}
		r.connectFrom("10.0.0.4").expectClosed()
		first.nc.Close()
		synctest.Wait()
		r.connectFrom("10.0.0.4").ask(overhop.THello, nil, overhop.THi)
	})
}

func TestHostOf(t *testing.T) {
	for _, c := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, "10.0.0.1"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:10.0.0.1"), Port: 2}, "10.0.0.1"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 3}, "2001:db8::1"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Port: 4, Zone: "eth0"}, "fe80::1%eth0"},
		{&net.UnixAddr{Name: "pipe", Net: "pipe"}, "pipe"},
	} {
		if got := hostOf(c.addr); got != c.want {
			t.Errorf("%v is of host %q, want %q", c.addr, got, c.want)
		}
	}
}

// failingListener is a listener that is out of file descriptors until a given
// time.
type failingListener struct {
	*pipeListener
	until time.Time
	mu    sync.Mutex
	tries int
}

func (l *failingListener) Accept() (net.Conn, error) {
	if time.Now().Before(l.until) {
		l.mu.Lock()
		l.tries++
		l.mu.Unlock()
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.pipeListener.Accept()
}

// Without file descriptors the edge retries with growing delays, logs this
// rarely, and accepts connections again as soon as it can.
func TestAccept_BacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := testlog.NewRecorder(t)
		s, err := New(Config{}, newMemCluster(), newMemExecutor(), log)
		if err != nil {
			t.Fatal(err)
		}
		r := &harness{t: t, server: s, ln: newPipeListener()}
		ln := &failingListener{pipeListener: r.ln, until: time.Now().Add(time.Minute)}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, ln) }()
		time.Sleep(time.Minute + time.Second)
		r.register(true).ask(overhop.TPing, nil, overhop.TPong)
		if ln.tries < 60 || ln.tries > 140 {
			t.Errorf("%d tries in a minute, want one or two a second", ln.tries)
		}
		if n := len(lines.Messages(slog.LevelWarn)); n < 2 || n > 13 {
			t.Errorf("%d warnings", n)
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// fdLimitEnv makes the test binary a server with the given number of file
// descriptors.
const fdLimitEnv = "YARD_TEST_EDGE_DESCRIPTORS"

// TestFDLimitServer is that server. It prints its address, then its log, and
// ends when its input does.
func TestFDLimitServer(t *testing.T) {
	n, err := strconv.ParseUint(os.Getenv(fdLimitEnv), 10, 64)
	if err != nil {
		t.Skip("runs as a process of TestAccept_OutOfDescriptors only")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{}, newMemCluster(), newMemExecutor(), slog.New(slog.NewTextHandler(os.Stdout, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		os.Stdin.Read(make([]byte, 1))
	}()
	os.Stdout.WriteString(ln.Addr().String() + "\n")
	if err := s.Serve(ctx, ln); err != nil {
		t.Fatal(err)
	}
}

// A process whose file descriptors are used up by unregistered connections
// continues to serve its clients, and accepts new ones as soon as descriptors
// are free.
func TestAccept_OutOfDescriptors(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	server := exec.Command(os.Args[0], "-test.run=^TestFDLimitServer$", "-test.v")
	server.Env = append(os.Environ(), fdLimitEnv+"=64")
	input, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		input.Close()
		if err := server.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	}()
	defer time.AfterFunc(20*time.Second, func() { server.Process.Kill() }).Stop() // nothing below blocks for ever
	lines := bufio.NewScanner(output)
	await := func(what string) string {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), what) {
				return lines.Text()
			}
		}
		t.Fatalf("the server never printed %q: %v", what, lines.Err())
		return ""
	}
	addr := await("127.0.0.1:")
	dial := func() net.Conn {
		t.Helper()
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(15 * time.Second))
		return nc
	}
	early := plainClient{nc: dial()}
	early.register(t)
	var strangers []net.Conn
	for range 200 {
		strangers = append(strangers, dial())
	}
	await("cannot accept connections, retrying")
	early.ask(t, overhop.TPing, overhop.TPong)
	for _, nc := range strangers {
		nc.Close()
	}
	late := plainClient{nc: dial()}
	late.register(t)
	late.ask(t, overhop.TPing, overhop.TPong)
	early.ask(t, overhop.TPing, overhop.TPong)
	early.nc.Close()
	late.nc.Close()
}

// plainClient sends requests over a real socket and waits for each answer.
type plainClient struct {
	nc net.Conn
	in *frame.Reader
}

func (c *plainClient) register(t *testing.T) {
	t.Helper()
	c.in = frame.NewReader(c.nc, overhop.MaxFrameLimit)
	c.ask(t, overhop.THello, overhop.THi)
	c.ask(t, overhop.TRegister, overhop.TOK)
}

func (c *plainClient) ask(t *testing.T, kind, want int64) {
	t.Helper()
	b, _ := overhop.AppendFields(nil, kind, "r", nil)
	if _, err := c.nc.Write(b); err != nil {
		t.Fatal(err)
	}
	b, err := c.in.Next()
	if err != nil {
		t.Fatalf("t=%d is not answered: %v", kind, err)
	}
	if e, err := overhop.ParseEnvelope(b); err != nil || e.T != want {
		t.Fatalf("t=%d is answered by t=%d, %v", kind, e.T, err)
	}
}
