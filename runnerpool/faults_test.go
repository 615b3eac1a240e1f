package runnerpool

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/runnerpool/rrq"
)

// Whatever a runner does to a job, the outcome says it, the policy makes of it
// what RRQ would, and the pool serves the next job.
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
		counted        bool // the attempt
		text           string
	}{
		{"good", "crash", 0, job.Lost, job.Back, false, "ended: exit status 7"},
		{"good", "exit0", 0, job.Lost, job.Back, false, "ended: exit status 0"},
		{"good", "error", 0, job.Error, job.Again, true, "m"},
		{"good", "retry", 0, job.Retry, job.Again, true, "Job requested retry"},
		{"good", "timeout", 0, job.TimedOut, job.Dead, true, "Job timed out after 10s."},
		{"good", "nobody", 0, job.Error, job.Dead, true, "Handler not found"},
		{"good", "wait", expired, job.TimedOut, job.Dead, true, "Job execution timed out"},
		{"good", "hang", expired, job.TimedOut, job.Dead, true, "Job timed out after 0.3s."},
		{"ignores-term", "hang", expired, job.TimedOut, job.Dead, true, "Job timed out after 0.3s."},
		{"raw", "never", expired, job.TimedOut, job.Dead, true, "Job timed out after 0.3s."},
		{"raw", "garbage", 0, job.Error, job.Again, true, wire + "malformed message"},
		{"raw", "huge", 0, job.Error, job.Again, true, wire + "read response: frame of 17825792 bytes is larger than the limit of 16777216"},
		{"raw", "eof", 0, job.Error, job.Again, true, wire + "runner closed the connection"},
		{"raw", "foreign-job", 0, job.Error, job.Again, true, wire + "runner outcome mismatch"},
		{"raw", "stranger", expired, job.TimedOut, job.Dead, true, "Job timed out after 0.3s."},
		{"raw", "twice", 0, job.Success, job.Done, true, ""},
	} {
		t.Run(test.mode+" "+test.function, func(t *testing.T) {
			t.Parallel()
			y := startYard(t, testConfig(test.mode, nil))
			o := y.do(test.function, func(a *job.Assignment) {
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
			v := job.DefaultPolicy.Decide(job.Attempt{Number: 1}, o)
			if v.Next != test.next || (v.Next != job.Back) != test.counted {
				t.Errorf("verdict is %+v", v)
			}
			after := y.do("echo", nil)
			y.expect(after, job.Success, true, "")
		})
	}
}

// The last attempt of a job is its last, and the yard's own stops give theirs
// back.
func TestFaults_Attempts(t *testing.T) {
	y := startYard(t, testConfig("", nil))
	last := job.Attempt{Number: 5}
	for function, want := range map[string]job.Next{"error": job.Dead, "retry": job.Dead, "crash": job.Back} {
		if v := job.DefaultPolicy.Decide(last, y.do(function, nil)); v.Next != want {
			t.Errorf("%s: %+v", function, v)
		}
	}
	for why, want := range map[job.RecallReason]job.Next{
		job.RecallShutdown: job.Back, job.RecallLease: job.Back, job.RecallCancelled: job.Dead, job.RecallDeadline: job.Dead,
	} {
		a := y.begin("wait", nil)
		y.awaitSent(a)
		y.Stop(a.Job, a.N, why)
		if v := job.DefaultPolicy.Decide(last, y.awaitOutcome()); v.Next != want {
			t.Errorf("%s: %+v", why, v)
		}
	}
}

// What the node has in its environment as somebody's runner, or keeps secret,
// is not for its own runners; what the configuration gives them is.
func TestEnvironmentOfRunners(t *testing.T) {
	for _, name := range withheld {
		t.Setenv(name, "the node's own")
	}
	t.Setenv("YARD_TEST_PLAIN", "handed on")
	for _, via := range []string{SocketBoth, SocketArg} {
		r := RunnerConfig{Cmd: []string{"x", "--tcp-socket", "127.0.0.1:1", "--tcp-socket={socket}", "-s", "a={socket}"}, SocketVia: via,
			Env: map[string]string{"OWN": "1", "YARD_SERVER_TOKEN": "given", socketEnv: "127.0.0.1:2", markerEnv: "none"}}
		cmd := command(&r, "127.0.0.1:9", markerEnv+"=m/1")
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
		want := map[string]string{"OWN": "1", "YARD_SERVER_TOKEN": "given", "YARD_CLUSTER_SECRET": "", markerEnv: "m/1", "YARD_TEST_PLAIN": "handed on", socketEnv: "127.0.0.1:9"}
		if via == SocketArg {
			want[socketEnv] = ""
		}
		for name, value := range want {
			if env[name] != value {
				t.Errorf("%s: %s is %q, want %q", via, name, env[name], value)
			}
		}
	}
}

// An external runner may listen on IPv6, written with or without brackets.
func TestExternalRunner_IPv6(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 loopback: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- rrq.Serve(ctx, ln, handle) }()
	for _, host := range []string{"::1", " [::1] "} {
		cfg := testConfig("", func(c *RunnerConfig) { c.TCPHost, c.TCPPort = host, ln.Addr().(*net.TCPAddr).Port })
		cfg.Management = External
		y := startYard(t, cfg)
		y.expect(y.do("echo", nil), job.Success, true, "")
		y.close()
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Process 1 of a container is refused, and told what to do.
func TestProcessOneIsRefused(t *testing.T) {
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
