// Package postgresql starts PostgreSQL servers for tests and benchmarks.
package postgresql

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

const (
	startTimeout = 30 * time.Second
	stopTimeout  = 5 * time.Second
)

// Find returns the path of a program of PostgreSQL, such as "postgres": that in PATH, or
// that of the newest version that Debian has installed.
func Find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil {
		return path, nil
	}
	if found, _ := filepath.Glob(filepath.Join("/usr/lib/postgresql/*/bin", program)); len(found) > 0 {
		return found[len(found)-1], nil
	}
	return "", fmt.Errorf("%w; install PostgreSQL (Debian: apt-get install postgresql)", err)
}

// Server is a running server.
type Server struct {
	*procs.Process
	Addr string
}

// Start creates a database in dir and starts its server. Neither program runs as root, so
// root runs them as the user postgres, which Debian's package creates and who must be able
// to enter dir.
func Start(ctx context.Context, dir string) (*Server, error) {
	path, err := Find("postgres")
	if err != nil {
		return nil, err
	}
	initdb, err := Find("initdb")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	owner, err := serverUser()
	if err != nil {
		return nil, err
	}
	if owner != nil {
		if err := os.Chown(data, int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, err
		}
	}
	as := func(cmd *exec.Cmd) {
		cmd.Dir = dir
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.Credential = owner
	}
	create := exec.CommandContext(ctx, initdb, initdbArgs(data)...)
	as(create)
	if out, err := create.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	addrs, err := freeport.Addresses(1)
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: addrs[0], Process: &procs.Process{
		Name: "postgres", LogFile: filepath.Join(dir, "postgres.log"), Args: serverArgs(path, data, addrs[0]),
		Launch: func(cmd *exec.Cmd) error {
			as(cmd)
			return cmd.Start()
		},
	}}
	if err := s.Process.Start(); err != nil {
		return nil, err
	}
	if err := s.awaitReady(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// awaitReady waits until the server accepts connections. For some milliseconds more, it
// may refuse them as not ready.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", s.Addr)
		if err == nil {
			return conn.Close()
		}
		if err := s.Ended(); err != nil {
			return err
		}
		if backoff.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("PostgreSQL does not accept connections: %w; %s", err, s.OutputTail())
		}
	}
}

// URL returns the address of the database.
func (s *Server) URL() string { return "postgres://postgres@" + s.Addr + "/postgres?sslmode=disable" }

// Stop ends the sessions and the server; after a SIGTERM it would wait for them.
func (s *Server) Stop() {
	_ = s.Signal(syscall.SIGINT) // fails if it has exited
	s.Process.Stop(stopTimeout)
}

// serverUser returns the user that runs PostgreSQL, nil if it is that of this process.
func serverUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w; create this user, or do not run this program as root", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// initdbArgs returns the arguments that create a database without passwords.
func initdbArgs(data string) []string {
	return []string{"--pgdata", data, "--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--no-locale"}
}

// serverArgs returns the command line of a server with default settings: every commit is
// synced to disk before it is acknowledged, commits at the same time together.
func serverArgs(path, data, addr string) []string {
	host, port, _ := net.SplitHostPort(addr)
	args := []string{path, "-D", data}
	for _, setting := range []string{"listen_addresses=" + host, "port=" + port, "unix_socket_directories=", "fsync=on", "synchronous_commit=on"} {
		args = append(args, "-c", setting)
	}
	return args
}
