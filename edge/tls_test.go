package edge

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

// TLS changes nothing in the life of a worker.
func TestTLS(t *testing.T) {
	ca := newTestCA(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		bubble(t, ca.overTLS(t), func(r *harness) {
			cfg := ca.client("edge")
			cfg.MinVersion, cfg.MaxVersion = version, version
			p := r.registerOver(tls.Client(r.ln.dial(), cfg), fields{"ext": []string{overhop.Delivery}})
			p.ask(overhop.TSubscribe, fields{"q": "jobs", "credits": 1}, overhop.TOK)
			q := r.startJob(p, 1, nil)
			p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
			p.ask(overhop.TDone, leaseFieldsWith(q, fields{"result": strings.Repeat("x", 1<<20)}), overhop.TOK)
			if o := r.executor.onlyOutcome(t); len(o.Result.Data) < 1<<20 {
				t.Errorf("outcome is %+v", o)
			}
			r.stop()
			if got := str(p.expect(overhop.TDrain, "0").Get("reason")); got == "" {
				t.Error("no DRAIN")
			}
			p.expect(overhop.TBye, "0")
			p.expectClosed()
		})
	}
}

// handshake returns what a client that sends only HELLO gets from a connection.
func handshake(nc net.Conn, cfg *tls.Config) error {
	over := tls.Client(nc, cfg)
	defer over.Close()
	hello, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
	if _, err := over.Write(hello); err != nil {
		return err
	}
	_, err := over.Read(make([]byte, 1))
	return err
}

// logBuffer collects log lines.
type logBuffer struct {
	mu    sync.Mutex
	lines []string
}

func (j *logBuffer) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, string(line))
	return len(line), nil
}

func (j *logBuffer) warnings() (lines []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		if strings.Contains(line, "level=WARN") {
			lines = append(lines, line)
		}
	}
	return lines
}

// served runs a server on a real socket until the test ends.
func served(t *testing.T, cfg Config) (s *Server, dial func() net.Conn, log *logBuffer) {
	t.Helper()
	log = new(logBuffer)
	s, err := New(cfg, newMemCluster(), newMemExecutor(), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, func() net.Conn {
		t.Helper()
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		return nc
	}, log
}

// Both sides report why a handshake has failed.
func TestTLS_HandshakeRefused(t *testing.T) {
	ca, other := newTestCA(t), newTestCA(t)
	mine := ca.pair(t, "worker")
	old := ca.client("edge", mine)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for name, c := range map[string]struct {
		client     *tls.Config
		want, logs string
	}{
		"ours":           {ca.client("edge", mine), "", ""},
		"no certificate": {ca.client("edge"), "certificate required", "didn't provide a certificate"},
		"a stranger's":   {ca.client("edge", other.pair(t, "worker")), "unknown certificate authority", "unknown authority"},
		"TLS 1.1":        {old, "protocol version", "unsupported versions"},
		"it trusts not":  {other.client("edge", mine), "unknown authority", "bad certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := ca.overTLS(t)
			cfg.Server.TLS.ClientCAFile = filepath.Join(t.TempDir(), "clients.pem")
			write(t, cfg.Server.TLS.ClientCAFile, ca.pem)
			s, dial, log := served(t, cfg)
			if err := handshake(dial(), c.client); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the client's error is %v, want %q", err, c.want)
			}
			for s.Counts().Connections > 0 {
				runtime.Gosched() // until the server has dealt with it
			}
			lines := log.warnings()
			if c.logs == "" && len(lines) > 0 || c.logs != "" && (len(lines) != 1 || !strings.Contains(lines[0], c.logs)) {
				t.Errorf("logged %q, want %q", lines, c.logs)
			}
		})
	}
}

// A client that uses TCP in place of TLS, or the reverse, is closed, and the
// reason is logged once for many of them.
func TestTLS_ProtocolMismatch(t *testing.T) {
	ca := newTestCA(t)
	bubble(t, ca.overTLS(t), func(r *harness) {
		hello, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
		for range 50 {
			for _, says := range []string{string(hello), "GET / HTTP/1.1\r\n\r\n"} {
				p := r.connect()
				p.write([]byte(says)[:5])
				p.expectClosed()
			}
		}
		if lines := r.log.Messages(slog.LevelWarn); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		r.registerOver(tls.Client(r.ln.dial(), ca.client("edge")), nil)
	})
	bubble(t, Config{}, func(r *harness) {
		for range 50 {
			if err := handshake(r.ln.dial(), ca.client("edge")); err == nil {
				t.Error("a handshake with a server that speaks no TLS")
			}
		}
		if lines := r.log.Messages(slog.LevelWarn); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		r.register(true)
	})
}

// A client that speaks HTTP gets an answer that names the right port. One warning is logged for many such clients.
func TestHTTPClient(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		for range 5 {
			nc := r.ln.dial()
			go nc.Write([]byte("GET /v1/status HTTP/1.1\r\nHost: node\r\n\r\n"))
			answer, err := http.ReadResponse(bufio.NewReader(nc), nil)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "HTTP is at http.listen") {
				t.Errorf("answered %s %q", answer.Status, text)
			}
			nc.Close()
		}
		if lines := r.log.Messages(slog.LevelWarn); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

// A handshake has the time allowed until HELLO, and does not delay other
// clients.
func TestTLS_SlowHandshake(t *testing.T) {
	ca := newTestCA(t)
	bubble(t, ca.overTLS(t), func(r *harness) {
		mute, slow := r.connect(), r.connect()
		r.registerOver(tls.Client(r.ln.dial(), ca.client("edge")), nil)
		slow.write([]byte{22, 3, 1, 1, 0}) // a record of 256 bytes
		for range 9 {
			time.Sleep(time.Second)
			slow.write([]byte{1})
		}
		mute.expectNothing()
		slow.expectNothing()
		time.Sleep(3 * time.Second)
		mute.expectClosed()
		slow.expectClosed()
		p := r.registerOver(tls.Client(r.ln.dial(), ca.client("edge")), nil)
		p.ask(overhop.TPing, nil, overhop.TPong)
	})
}

// A client that does not read is cut off over TLS as well, without waiting for
// the end of the TLS stream.
func TestTLS_SlowReader(t *testing.T) {
	ca := newTestCA(t)
	cfg := ca.overTLS(t)
	cfg.Limits.WriteTimeout = time.Second
	bubble(t, cfg, func(r *harness) {
		nc := tls.Client(r.ln.dial(), ca.client("edge"))
		b, _ := overhop.AppendFields(nil, overhop.THello, "1", nil)
		b, _ = overhop.AppendFields(b, overhop.TRegister, "2", nil)
		if _, err := nc.Write(b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		if len(r.server.conns) != 0 {
			t.Error("the client that does not read is still connected")
		}
	})
}

// recordingConn records everything that is read.
type recordingConn struct {
	net.Conn
	read []byte
}

func (c *recordingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read = append(c.read, b[:n]...)
	return n, err
}

// lastRecord returns the type of the last TLS record.
func (c *recordingConn) lastRecord() (kind byte) {
	for rest := c.read; len(rest) >= 5; {
		kind = rest[0]
		rest = rest[min(len(rest), 5+int(binary.BigEndian.Uint16(rest[3:]))):]
	}
	return kind
}

// A refusal reaches a client over TLS, whatever else it has sent, and the TLS
// stream ends properly.
func TestTLS_ErrReachesClient(t *testing.T) {
	ca := newTestCA(t)
	cfg := ca.overTLS(t)
	cfg.Server.Token = "sesame"
	_, dial, _ := served(t, cfg)
	flood, _ := overhop.AppendFields(nil, overhop.THello, "1", fields{"token": "open"})
	flood, _ = overhop.AppendFields(flood, overhop.TRegister, "2", nil)
	for range 1000 {
		flood, _ = overhop.AppendFields(flood, overhop.TPing, "p", nil)
	}
	for range 10 {
		trust, tape := ca.client("edge"), &recordingConn{Conn: dial()}
		trust.MaxVersion = tls.VersionTLS12 // of which a record's kind can be seen
		nc := tls.Client(tape, trust)
		if _, err := nc.Write(flood); err != nil {
			t.Fatal(err)
		}
		in := frame.NewReader(nc, overhop.MaxFrameLimit)
		for _, want := range []string{`{}`, `"UNAUTHORIZED"`} {
			b, err := in.Next()
			if err != nil {
				t.Fatalf("want %s: %v", want, err)
			}
			if e, err := overhop.ParseEnvelope(b); err != nil || !strings.Contains(text(e.P), want) {
				t.Errorf("got %s %v, want %s", text(e.P), err, want)
			}
		}
		if _, err := in.Next(); err != io.EOF {
			t.Errorf("the stream ends with %v", err)
		}
		if got := tape.lastRecord(); got != 21 {
			t.Errorf("the last record is of kind %d, want an alert, 21: the stream's proper end", got)
		}
	}
}

// Replaced files take effect a second later; unusable ones are ignored.
func TestTLS_Rotation(t *testing.T) {
	ca := newTestCA(t)
	cfg := ca.overTLS(t)
	files := cfg.Server.TLS
	bubble(t, cfg, func(r *harness) {
		names := []string{"first", "second", "third"}
		pairs, keys := map[string]string{}, map[string]string{}
		for _, name := range names {
			pairs[name], keys[name] = ca.issue(t, plan(name))
		}
		serves := func(name string, lines ...string) {
			t.Helper()
			if err := handshake(r.ln.dial(), ca.client(name)); err != nil {
				t.Errorf("want the certificate of %s: %v", name, err)
			}
			var said []string
			for _, line := range r.log.Messages(slog.LevelInfo) {
				if strings.Contains(line, "certificates") {
					said = append(said, line)
				}
			}
			if !slices.Equal(said, lines) {
				t.Errorf("at %s the log says %q, want %q", name, said, lines)
			}
			time.Sleep(certs.RefreshInterval)
		}
		const renewed, broken = "certificates reloaded", "new certificates invalid, keeping the old ones"
		stand := r.registerOver(tls.Client(r.ln.dial(), ca.client("edge")), nil)
		files.write(t, pairs["first"], keys["first"])
		if err := handshake(r.ln.dial(), ca.client("edge")); err != nil {
			t.Errorf("within the same second: %v", err)
		}
		time.Sleep(certs.RefreshInterval)
		serves("first", renewed)
		serves("first", renewed)
		write(t, files.CertFile, pairs["second"]) // its key is written later
		serves("first", renewed, broken)
		serves("first", renewed, broken)
		write(t, files.KeyFile, keys["second"])
		serves("second", renewed, broken, renewed)
		if err := os.Remove(files.KeyFile); err != nil {
			t.Fatal(err)
		}
		serves("second", renewed, broken, renewed, broken)
		serves("second", renewed, broken, renewed, broken)
		files.write(t, pairs["third"], keys["third"])
		serves("third", renewed, broken, renewed, broken, renewed)
		stand.ask(overhop.TPing, nil, overhop.TPong)
	})
}

// New refuses unusable files with an error that names them.
func TestTLS_Files(t *testing.T) {
	ca := newTestCA(t)
	cert, key := ca.issue(t, plan("edge"))
	past := plan("edge")
	past.NotAfter = time.Now().Add(-time.Hour)
	expired, expiredKey := ca.issue(t, past)
	_, stranger := ca.issue(t, plan("edge"))
	for name, c := range map[string]struct {
		cert, key, clients string // "-": no such file
		says               []string
	}{
		"no certificate":    {"-", key, "", []string{"server.tls.cert_file", "cert.pem", "no such file"}},
		"no key":            {cert, "-", "", []string{"server.tls.key_file", "key.pem", "no such file"}},
		"no authorities":    {cert, key, "-", []string{"server.tls.client_ca_file", "ca.pem", "no such file"}},
		"another's key":     {cert, stranger, "", []string{"cert.pem", "key.pem", "do not match"}},
		"switched":          {key, cert, "", []string{"cert.pem", "key.pem", "do not match"}},
		"empty":             {"", "", "", []string{"cert.pem", "do not match"}},
		"authority is text": {cert, key, "trust me", []string{"server.tls.client_ca_file", "ca.pem", "no certificate"}},
		"authority is key":  {cert, key, key, []string{"server.tls.client_ca_file", "no certificate"}},
		"expired":           {expired, expiredKey, ca.pem, nil},
	} {
		t.Run(name, func(t *testing.T) {
			files := newFiles(t)
			if c.clients != "" {
				files.ClientCAFile = filepath.Join(t.TempDir(), "ca.pem")
			}
			for file, text := range map[string]string{files.CertFile: c.cert, files.KeyFile: c.key, files.ClientCAFile: c.clients} {
				if file != "" && text != "-" {
					write(t, file, text)
				}
			}
			log, lines := testlog.NewRecorder(t)
			_, err := New(Config{Server: ServerConfig{TLS: files}}, newMemCluster(), newMemExecutor(), log)
			if (err == nil) != (len(c.says) == 0) {
				t.Errorf("error is %v", err)
			}
			for _, says := range c.says {
				if err != nil && !strings.Contains(err.Error(), says) {
					t.Errorf("%v does not say %q", err, says)
				}
			}
			if warned := len(lines.Messages(slog.LevelWarn)) > 0; warned != (name == "expired") {
				t.Errorf("warned: %t", warned)
			}
		})
	}
}

// The Go client authenticates as the node requires, and gets an error if it
// cannot.
func TestTLS_GoClient(t *testing.T) {
	ca := newTestCA(t)
	cfg := ca.overTLS(t)
	cfg.Server.Token = "sesame"
	cfg.Server.TLS.ClientCAFile = filepath.Join(t.TempDir(), "clients.pem")
	write(t, cfg.Server.TLS.ClientCAFile, ca.pem)
	_, dial, _ := served(t, cfg)
	addr, shows := dial().RemoteAddr().String(), ca.client("edge", ca.pair(t, "worker"))
	for name, c := range map[string]struct {
		options overhop.Options
		code    overhop.Code
		fails   bool
	}{
		"all":         {overhop.Options{TLS: shows, Token: "sesame"}, "", false},
		"wrong token": {overhop.Options{TLS: shows, Token: "open"}, overhop.CodeUnauthorized, true},
		"no token":    {overhop.Options{TLS: shows}, overhop.CodeUnauthorized, true},
		"no TLS":      {overhop.Options{Token: "sesame"}, "", true},
	} {
		client, err := overhop.Dial(t.Context(), addr, c.options)
		if (err != nil) != c.fails || overhop.ErrorCode(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			client.Close()
		}
	}
}
