package hosts

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// newNetwork creates a network with hosts of these names. At the end of the test it
// closes the network and checks that no namespace is left.
func newNetwork(t *testing.T, create func() (*Network, error), names ...string) *Network {
	t.Helper()
	if reason := Missing(); reason != "" {
		t.Skip(reason)
	}
	n, err := create()
	if err != nil {
		t.Fatal(err)
	}
	spaces := []string{n.name + "-sw"}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range spaces {
			if _, err := os.Stat("/var/run/netns/" + s); err == nil {
				t.Errorf("%s is left", s)
			}
		}
	})
	for _, name := range names {
		h, err := n.Add(name)
		if err != nil {
			t.Fatal(err)
		}
		spaces = append(spaces, h.netns)
	}
	return n
}

// TestNetwork_Cut checks that hosts reach each other unless their link is cut, in
// the given direction, and again after it is healed.
func TestNetwork_Cut(t *testing.T) {
	n := newNetwork(t, New, "a", "b")
	a, b := n.Hosts[0], n.Hosts[1]
	for _, h := range n.Hosts { // each runs an echo server
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "YARD_TEST_ECHO="+h.Addr+":7777")
		if err := h.Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	}
	reach := func(from *Host, to string) bool {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "YARD_TEST_CALL="+to+":7777")
		if from == nil {
			return cmd.Run() == nil
		}
		if err := from.Start(cmd); err != nil {
			t.Fatal(err)
		}
		return cmd.Wait() == nil
	}
	for deadline := time.Now().Add(10 * time.Second); !reach(nil, a.Addr) || !reach(nil, b.Addr); {
		if time.Now().After(deadline) {
			t.Fatal("the hosts cannot be reached")
		}
	}
	want := func(what string, ab, ba bool) {
		t.Helper()
		if got := reach(a, b.Addr); got != ab {
			t.Errorf("%s: a reaches b: %t", what, got)
		}
		if got := reach(b, a.Addr); got != ba {
			t.Errorf("%s: b reaches a: %t", what, got)
		}
		if !reach(nil, a.Addr) || !reach(nil, b.Addr) {
			t.Errorf("%s: this program does not reach both", what)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want("whole", true, true)
	do(a.Cut(b))
	want("cut", false, false)
	do(n.Heal())
	want("healed", true, true)
	do(b.AddRules("ip saddr " + a.Addr + " tcp dport 7777 drop")) // a cannot call b
	want("one way", false, true)
	do(n.Heal())
	do(a.CutPort(7778, b))
	want("another port", true, true)
	do(a.CutPort(7777, b))
	want("the port", false, false)
	do(n.Heal())
	do(n.Heal())
	do(a.DropPackets(50, b))
	if err := a.DropPackets(100, b); err == nil {
		t.Error("a loss of 100 percent was accepted")
	}
}

// TestNetwork_Delay checks that a link can be delayed and healed.
func TestNetwork_Delay(t *testing.T) {
	n := newNetwork(t, NewSlow, "a")
	a := n.Hosts[0]
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "YARD_TEST_ECHO="+a.Addr+":7777")
	if err := a.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	call := func() (took time.Duration, err error) {
		began := time.Now()
		c, err := net.DialTimeout("tcp", a.Addr+":7777", 5*time.Second)
		if err == nil {
			took = time.Since(began)
			err = c.Close()
		}
		return took, err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := call(); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	const minDelay = 40 * time.Millisecond
	if err := a.Delay(minDelay, 2*minDelay); err != nil {
		t.Fatal(err)
	}
	if took, err := call(); err != nil || took < 2*minDelay {
		t.Errorf("a connection took %s, %v; want at least %s for both ways", took, err, 2*minDelay)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	soon := false
	for range 20 {
		took, err := call()
		soon = soon || err == nil && took < 2*minDelay
	}
	if !soon {
		t.Error("the link is still slow")
	}
}

func TestHost_Others(t *testing.T) {
	a, b, c := &Host{Name: "a"}, &Host{Name: "b"}, &Host{Name: "c"}
	n := &Network{Hosts: []*Host{a, b, c}}
	a.net, b.net, c.net = n, n, n
	if o := b.Others(); len(o) != 2 || o[0] != a || o[1] != c {
		t.Errorf("%v", o)
	}
}

// TestMain turns this program into a server at an address, or into a client that
// succeeds if it gets an answer from there, if the environment asks for it.
func TestMain(m *testing.M) {
	if addr := os.Getenv("YARD_TEST_ECHO"); addr != "" {
		ln, err := net.Listen("tcp", addr)
		for err == nil {
			var c net.Conn
			if c, err = ln.Accept(); err == nil {
				c.Write([]byte("here"))
				c.Close()
			}
		}
		os.Exit(1)
	}
	if to := os.Getenv("YARD_TEST_CALL"); to != "" {
		c, err := net.DialTimeout("tcp", to, 400*time.Millisecond)
		if err != nil {
			os.Exit(1)
		}
		c.SetDeadline(time.Now().Add(400 * time.Millisecond))
		answer := make([]byte, 4)
		if _, err := c.Read(answer); err != nil || !strings.Contains(string(answer), "here") {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
