package runnerpool

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// For every way in which a runner can fail a job, the outcome describes it, the
// policy decides as RRQ would, and the pool runs the next job.
func TestFaults(t *testing.T) {
	const (
		wire    = "Runner transport error: "
		expired = 300 * time.Millisecond
	)
	for _, test := range []struct {
		mode, function string
		timeout        time.Duration
		status         job.Status
		next           job.Next
		counted        bool // the attempt counts
		text           string
	}{
		{"good", "crash", 0, job.Lost, job.NextGiveBack, false, "ended: exit status 7"},
		{"good", "exit0", 0, job.Lost, job.NextGiveBack, false, "ended: exit status 0"},
		{"good", "error", 0, job.Error, job.NextRetry, true, "m"},
		{"good", "retry", 0, job.Retry, job.NextRetry, true, "Job requested retry"},
		{"good", "timeout", 0, job.TimedOut, job.NextDead, true, "Job timed out after 10s."},
		{"good", "nobody", 0, job.Error, job.NextDead, true, "Handler not found"},
		{"good", "wait", expired, job.TimedOut, job.NextDead, true, "Job execution timed out"},
		{"good", "hang", expired, job.TimedOut, job.NextDead, true, "Job timed out after 0.3s."},
		{"ignores-term", "hang", expired, job.TimedOut, job.NextDead, true, "Job timed out after 0.3s."},
		{"raw", "never", expired, job.TimedOut, job.NextDead, true, "Job timed out after 0.3s."},
		{"raw", "garbage", 0, job.Error, job.NextRetry, true, wire + "malformed message"},
		{"raw", "huge", 0, job.Error, job.NextRetry, true, wire + "read response: frame of 17825792 bytes is larger than the limit of 16777216"},
		{"raw", "eof", 0, job.Error, job.NextRetry, true, wire + "runner closed the connection"},
		{"raw", "foreign-job", 0, job.Error, job.NextRetry, true, wire + "runner outcome mismatch"},
		{"raw", "stranger", expired, job.TimedOut, job.NextDead, true, "Job timed out after 0.3s."},
		{"raw", "twice", 0, job.Success, job.NextDone, true, ""},
	} {
		t.Run(test.mode+" "+test.function, func(t *testing.T) {
			t.Parallel()
			y := startHarness(t, testConfig(test.mode, nil))
			o := y.run(test.function, func(a *job.Assignment) {
				if test.timeout > 0 {
					a.Timeout = test.timeout
				}
			})
			text := ""
			if o.Fault != nil {
				text = o.Fault.Message
			}
			if o.Status != test.status || !o.Started || !strings.Contains(text, test.text) {
				t.Errorf("outcome is %s (started %t) %q", o.Status, o.Started, text)
			}
			v := job.DefaultPolicy.Decide(job.Attempt{Number: 1}, nil, o)
			if v.Next != test.next || (v.Next != job.NextGiveBack) != test.counted {
				t.Errorf("verdict is %+v", v)
			}
			after := y.run("echo", nil)
			y.expect(after, job.Success, true, "")
		})
	}
}

// The last attempt of a job is final, and attempts stopped by the yard do not
// count.
func TestFaults_Attempts(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	last := job.Attempt{Number: 5}
	for function, want := range map[string]job.Next{"error": job.NextDead, "retry": job.NextDead, "crash": job.NextGiveBack} {
		if v := job.DefaultPolicy.Decide(last, nil, y.run(function, nil)); v.Next != want {
			t.Errorf("%s: %+v", function, v)
		}
	}
	for why, want := range map[job.RecallReason]job.Next{
		job.RecallShutdown: job.NextGiveBack, job.RecallLease: job.NextGiveBack, job.RecallCancelled: job.NextDead, job.RecallDeadline: job.NextDead,
	} {
		a := y.start("wait", nil)
		y.awaitSent(a)
		y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: why})
		if v := job.DefaultPolicy.Decide(last, nil, y.awaitOutcome()); v.Next != want {
			t.Errorf("%s: %+v", why, v)
		}
	}
}

// A runner inherits the usual variables and those that are configured, and no others: not
// the credentials of the node, nor the variables of a node that is itself a runner.
func TestEnvironmentOfRunners(t *testing.T) {
	own := map[string]string{
		"LC_ALL": "C", "PYTHONPATH": "/srv", "RRQ_RUNNER_SETTINGS": "app:settings", "HTTPS_PROXY": "proxy:1",
		"NATS_PASSWORD": "hidden", "NATS_NKEY": "hidden", "YARD_TEST_PLAIN": "hidden", "AWS_REGION": "eu", "AWS_SECRET": "hidden", "DATABASE_URL": "db",
	}
	for _, name := range withheldEnv {
		own[name] = "hidden"
	}
	for name, value := range own {
		t.Setenv(name, value)
	}
	for _, test := range []struct {
		via     string
		inherit []string
		want    map[string]string
	}{
		{SocketBoth, nil, map[string]string{"AWS_REGION": "", "DATABASE_URL": "", socketEnv: "127.0.0.1:9"}},
		{SocketArg, []string{"DATABASE_URL", "AWS_R*", "YARD_*"}, map[string]string{"AWS_REGION": "eu", "DATABASE_URL": "db", "YARD_TEST_PLAIN": "hidden"}},
	} {
		r := RunnerConfig{Cmd: []string{"x", "--tcp-socket", "127.0.0.1:1", "--tcp-socket={socket}", "-s", "a={socket}"},
			InheritEnv: test.inherit,
			Env:        map[string]string{"OWN": "1", "YARD_SERVER_TOKEN": "given", socketEnv: "127.0.0.1:2", markerEnv: "none"}}
		cmd := command(&r, test.via, "127.0.0.1:9", markerEnv+"=m/1")
		if got := strings.Join(cmd.Args, " "); got != "x --tcp-socket 127.0.0.1:9 --tcp-socket=127.0.0.1:9 -s a=127.0.0.1:9" {
			t.Errorf("arguments are %s", got)
		}
		env := map[string]string{}
		for _, v := range cmd.Env {
			name, value, _ := strings.Cut(v, "=")
			if _, twice := env[name]; twice {
				t.Errorf("%s twice", name)
			}
			env[name] = value
		}
		want := map[string]string{"OWN": "1", "YARD_SERVER_TOKEN": "given", markerEnv: "m/1", "PATH": os.Getenv("PATH")}
		for name, value := range own {
			if value == "hidden" {
				value = ""
			}
			if _, given := want[name]; !given {
				want[name] = value
			}
		}
		maps.Copy(want, test.want)
		for name, value := range want {
			if env[name] != value {
				t.Errorf("%s: %s is %q, want %q", test.via, name, env[name], value)
			}
		}
	}
}

// An external runner may listen on IPv6, with or without brackets in the
// configuration.
func TestExternalRunner_IPv6(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- rrq.Serve(ctx, ln, handleRequest) }()
	for _, host := range []string{"::1", " [::1] "} {
		cfg := testConfig("", func(c *RunnerConfig) { c.TCPHost, c.TCPPort = host, ln.Addr().(*net.TCPAddr).Port })
		cfg.Management = External
		y := startHarness(t, cfg)
		y.expect(y.run("echo", nil), job.Success, true, "")
		y.close()
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A node with managed runners refuses to run as process 1, and the error says
// what to do.
func TestPIDOneIsRefused(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), nodeMode+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Skipf("no process namespaces here: %v", err)
	}
	err := cmd.Wait()
	if err == nil || !strings.Contains(said.String(), fmt.Sprint(ErrInit)) {
		t.Errorf("%v: %s", err, said.String())
	}
}

// panicOn is a log that panics when it is told of an answer that nobody waits for.
type panicOn struct{ slog.Handler }

func (h panicOn) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "answer without request dropped" {
		panic("log")
	}
	return nil
}

func (h panicOn) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h panicOn) Enabled(context.Context, slog.Level) bool { return true }

// TestPanic checks that a panic while an answer is read is a failure of its dispatch, and that the pool
// goes on.
func TestPanic(t *testing.T) {
	y := runHarness(t, testConfig("raw", nil), slog.New(panicOn{slog.DiscardHandler}))
	y.expect(y.run("plain", nil), job.Success, true, "")
	o := y.run("stranger-first", nil)
	if o.Status != job.Error || !o.Started || !strings.Contains(o.Fault.Message, "panic: log") {
		t.Errorf("outcome is %+v, %+v", o, o.Fault)
	}
	y.expect(y.run("plain", nil), job.Success, true, "")
}
