package hosts

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Hosts reach each other until a link is cut, silently and in the direction
// that was asked for, and again when it is healed.
func TestNetwork_Cut(t *testing.T) {
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	n, err := New("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	spaces := []string{n.name + "-sw", n.Hosts[0].space, n.Hosts[1].space}
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
	a, b := n.Hosts[0], n.Hosts[1]
	for _, h := range n.Hosts { // each answers whoever calls
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
	for late := time.Now().Add(10 * time.Second); !reach(nil, a.Addr) || !reach(nil, b.Addr); {
		if time.Now().After(late) {
			t.Fatal("the hosts are not reached")
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
	do(b.Drop("ip saddr " + a.Addr + " tcp dport 7777 drop")) // a cannot call b
	want("one way", false, true)
	do(n.Heal())
	do(a.CutPort(7778, b))
	want("another port", true, true)
	do(a.CutPort(7777, b))
	want("the port", false, false)
	do(n.Heal())
	do(n.Heal())
	do(a.Lose(50, b))
	if err := a.Lose(100, b); err == nil {
		t.Error("to lose everything is no loss")
	}
}

// A slow cable delays, and goes on when it is healed.
func TestNetwork_Delay(t *testing.T) {
	if why := Missing(); why != "" {
		t.Skip(why)
	}
	n, err := NewSlow("a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
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
	for late := time.Now().Add(10 * time.Second); ; {
		if _, err := call(); err == nil {
			break
		} else if time.Now().After(late) {
			t.Fatal(err)
		}
	}
	const least = 40 * time.Millisecond
	if err := a.Delay(least, 2*least); err != nil {
		t.Fatal(err)
	}
	if took, err := call(); err != nil || took < 2*least {
		t.Errorf("a call takes %s, %v; want %s there and back", took, err, 2*least)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	soon := false
	for range 20 {
		took, err := call()
		soon = soon || err == nil && took < 2*least
	}
	if !soon {
		t.Error("the cable is still slow")
	}
}

func TestNetwork_Others(t *testing.T) {
	a, b, c := &Host{Name: "a"}, &Host{Name: "b"}, &Host{Name: "c"}
	n := &Network{Hosts: []*Host{a, b, c}}
	if o := n.Others(b); len(o) != 2 || o[0] != a || o[1] != c {
		t.Errorf("%v", o)
	}
}

// TestMain makes this program one that answers at an address, or one that
// calls there and ends well if it was answered.
func TestMain(m *testing.M) {
	if at := os.Getenv("YARD_TEST_ECHO"); at != "" {
		ln, err := net.Listen("tcp", at)
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
		said := make([]byte, 4)
		if _, err := c.Read(said); err != nil || !strings.Contains(string(said), "here") {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
