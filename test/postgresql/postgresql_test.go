package postgresql

import (
	"net"
	"os"
	"strings"
	"testing"
)

// A server syncs to disk before it acknowledges a commit, and listens on a loopback address
// only.
func TestServerArgs(t *testing.T) {
	line := strings.Join(serverArgs("path", "dir", "127.0.0.1:1234"), " ") + " "
	for _, want := range []string{"-c fsync=on", "-c synchronous_commit=on", "-c listen_addresses=127.0.0.1", "-c port=1234", "-D dir"} {
		if !strings.Contains(line, " "+want+" ") {
			t.Errorf("%q is missing in %s", want, line)
		}
	}
}

func TestStart(t *testing.T) {
	if _, err := Find("initdb"); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("/tmp", "postgresql") // the user postgres cannot enter that of the test
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	s.Stop()
	if s.Running() {
		t.Error("it is still running")
	}
}
