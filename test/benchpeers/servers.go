package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 5 * time.Second
)

// find returns the path of a program that is in PATH or in a directory that matches a
// pattern.
func find(name, debianPackage string, patterns ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(filepath.Join(pattern, name)); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return "", fmt.Errorf("%w; install it (Debian: apt-get install %s), or leave its system out with --only", err, debianPackage)
}

var versionNumber = regexp.MustCompile(`\d+(\.\d+)+`)

// versionOf returns the version that a program prints, "" if it prints none.
func versionOf(path, option string) string {
	out, _ := exec.Command(path, option).CombinedOutput() // beanstalkd -v exits with 1 in some versions
	return versionNumber.FindString(string(out))
}

// moduleVersion returns the version of a module that this program is built with, "" if it
// is not known.
func moduleVersion(path string) string {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return ""
}

// daemon is a server process that accepts connections at addr.
type daemon struct {
	*procs.Process
	addr string
}

// startDaemon starts p and waits until it accepts connections at addr.
func startDaemon(ctx context.Context, p *procs.Process, addr string) (*daemon, error) {
	if err := p.Start(); err != nil {
		return nil, err
	}
	d := &daemon{p, addr}
	if err := d.awaitReady(ctx); err != nil {
		d.Stop()
		return nil, err
	}
	return d, nil
}

func (d *daemon) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", d.addr)
		if err == nil {
			return conn.Close()
		}
		if err := d.Ended(); err != nil {
			return err
		}
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("%s does not accept connections: %w; %s", d.Name, err, d.OutputTail())
		}
	}
}

// CPU returns the processor time used by the process and all of its children.
func (d *daemon) CPU() time.Duration { return procstat.PID(d.PID()).TreeCPU() }

// Stop stops the process.
func (d *daemon) Stop() { d.Process.Stop(stopTimeout) }

// freeAddress returns a free loopback address and its port.
func freeAddress() (addr, port string, err error) {
	addrs, err := freeport.Addresses(1)
	if err != nil {
		return "", "", err
	}
	_, port, err = net.SplitHostPort(addrs[0])
	return addrs[0], port, err
}
