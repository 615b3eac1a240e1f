package main

import (
	"context"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/bench"
)

// TestMain runs the test binary as a server if the first argument is "listen", and as one
// that cannot start if it is "fail".
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "listen":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if _, err := net.Listen("tcp", os.Args[2]); err != nil {
			os.Exit(1)
		}
		<-ctx.Done()
		return
	case len(os.Args) == 2 && os.Args[1] == "fail":
		os.Stderr.WriteString("no such directory\n")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestStartDaemon checks that a server accepts connections when it has started, and that
// it is gone when it was stopped.
func TestStartDaemon(t *testing.T) {
	addr, _, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	d, err := startDaemon(t.Context(), &procs.Process{Name: "a server", LogFile: log, Args: []string{os.Args[0], "listen", addr}}, addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	d.Stop()
	if d.Running() {
		t.Error("it is still running")
	}
}

// TestStartDaemon_Fails checks that the error of a server that cannot start shows its
// output.
func TestStartDaemon_Fails(t *testing.T) {
	addr, _, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	_, err = startDaemon(t.Context(), &procs.Process{Name: "a server", LogFile: log, Args: []string{os.Args[0], "fail"}}, addr)
	if err == nil || !strings.Contains(err.Error(), "no such directory") {
		t.Errorf("got %v", err)
	}
}

// TestFind checks that a program that is not in PATH is found by a pattern, and that the
// error for a missing one names the package.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "15", "bin", "server-of-a-test")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := find("server-of-a-test", "", filepath.Join(dir, "*", "bin")); got != path {
		t.Errorf("got %q, %v, want %s", got, err, path)
	}
	if _, err := find("server-of-a-test", "the-package"); err == nil || !strings.Contains(err.Error(), "apt-get install the-package") {
		t.Errorf("got %v", err)
	}
}

// TestVersionOf checks that the version is found in the output of each program.
func TestVersionOf(t *testing.T) {
	for output, want := range map[string]string{
		"Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0": "7.0.15",
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)":       "15.18",
		"beanstalkd 1.12": "1.12",
		"unknown option":  "",
	} {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+output+"'\nexit 1\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if got := versionOf(path, "-v"); got != want {
			t.Errorf("version of %q is %q, want %q", output, got, want)
		}
	}
}

// TestArgs checks that every server syncs to disk before it acknowledges a job, and that
// it listens on loopback addresses only.
func TestArgs(t *testing.T) {
	for name, c := range map[string]struct{ args, want []string }{
		"redis":      {redisArgs("path", "dir", "1234"), []string{"--appendonly yes", "--appendfsync always", "--bind 127.0.0.1", "--port 1234", "--dir dir"}},
		"beanstalkd": {beanstalkdArgs("path", "dir", "1234"), []string{"-f 0", "-b dir", "-l 127.0.0.1", "-p 1234"}},
	} {
		line := strings.Join(c.args, " ") + " "
		for _, want := range c.want {
			if !strings.Contains(line, " "+want+" ") {
				t.Errorf("%s: %q is missing in %s", name, want, line)
			}
		}
	}
}

// TestSystems measures each system that is installed with few jobs.
func TestSystems(t *testing.T) {
	o := bench.SystemsOptions{Jobs: 200, Slots: 20, Rounds: 1, Rate: 100, Open: 100 * time.Millisecond}
	for _, find := range []func() (bench.System, error){asynqOnRedis, riverOnPostgreSQL, beanstalkd} {
		s, err := find()
		t.Run(s.Name, func(t *testing.T) {
			if err != nil {
				t.Skip(err)
			}
			figures, err := bench.RunSystems(t.Context(), o, []bench.System{s})
			if err != nil {
				t.Fatal(err)
			}
			if f := figures[0]; f.Done <= 0 || f.StartP50 <= 0 || f.Micros <= 0 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// TestNames checks that the flag --only names every system.
func TestNames(t *testing.T) {
	usage := newCommand().Flag("only").Usage
	names := strings.Split(usage[strings.LastIndex(usage, ": ")+2:], ", ")
	want := []string{bench.JetStreamQueue().Name, bench.Yardmaster(3, "", "").Name, bench.Yardmaster(1, "", "").Name}
	for _, find := range []func() (bench.System, error){asynqOnRedis, riverOnPostgreSQL, beanstalkd} {
		s, _ := find() // has its name even if it is not installed
		want = append(want, s.Name)
	}
	if !slices.Equal(names, want) {
		t.Errorf("--only names %v, there are %v", names, want)
	}
}
