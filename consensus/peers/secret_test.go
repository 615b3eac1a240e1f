package peers

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/testnet"
)

// TestPeerListener_Secret checks that a member accepts a connection for Raft only from
// a caller with the same secret, and that a caller refuses a member with another one.
func TestPeerListener_Secret(t *testing.T) {
	s := newTestSite(t, "n1", "n2")
	s.form(t)
	cfg := s.config("n1")
	cfg.Secret = "right"
	n1 := wait(t, start(deadline(t), cfg))
	self := n1.Listener().hello()
	self.Node, self.Dir = "n2", self.BootstrapMembers[1].Dir

	for _, secret := range []string{"wrong", "", "right"} {
		caller := newPeerListener(testnet.Listen(t), self, s.members, nil, secret, discardLog)
		conn, err := caller.Dial(n1.ServerID(), 5*time.Second)
		if secret == "right" {
			if err != nil {
				t.Fatal(err)
			}
			accepted, err := n1.Listener().Accept()
			if err != nil {
				t.Fatal(err)
			}
			accepted.Close()
			conn.Close()
		} else if refused, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(refused.Reason, "cluster.secret") {
			t.Errorf("with the secret %q: %v, want a refusal that names the secret", secret, err)
		}
		caller.Close()
	}

	// A caller that ignores the answer, and sends what another connection may have sent.
	for what, proof := range map[string][]byte{"no proof": nil, "another proof": bytes.Repeat([]byte{7}, 32)} {
		conn, err := net.Dial("tcp", n1.Listener().Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		stranger := self
		stranger.Purpose, stranger.Nonce = purposeRaft, "1"
		if err := writeHello(conn, stranger); err != nil {
			t.Fatal(err)
		}
		if answer, err := readHello(conn); err != nil || answer.Refused != "" || len(answer.Proof) == 0 {
			t.Fatalf("answer %+v, %v", answer, err)
		}
		if _, err := conn.Write(proof); err != nil {
			t.Fatal(err)
		}
		if proof == nil {
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			closed <- err
		}()
		accepted := make(chan struct{})
		go func() {
			if c, err := n1.Listener().Accept(); err == nil {
				c.Close()
				close(accepted)
			}
		}()
		select {
		case <-accepted:
			t.Errorf("%s: the connection is passed to Raft", what)
		case err := <-closed:
			if !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
				t.Errorf("%s: %v, want a closed connection", what, err)
			}
		}
		conn.Close()
	}
}

// TestPeerListener_StrangerReportsNoLoss checks that a stranger at a member's address cannot
// make a node with a secret believe that its log has lost entries, which would stop it.
func TestPeerListener_StrangerReportsNoLoss(t *testing.T) {
	s := newTestSite(t, "n1", "n2")
	s.form(t)
	cfg := s.config("n1")
	cfg.Secret = "right"
	n1 := wait(t, start(deadline(t), cfg))
	n1.Listener().SetLogInfo(LogInfo{
		LastIndex: func() uint64 { return 1 }, MinIndex: func(string) uint64 { return 0 },
		OnTruncated: func(err error) { t.Errorf("believes a stranger: %v", err) },
	})
	ln, err := net.Listen("tcp", s.members[1].Addr)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := readHello(conn); err != nil {
			t.Error(err)
		}
		lie := n1.Listener().hello()
		lie.Node, lie.Dir = "n2", lie.BootstrapMembers[1].Dir
		lie.Refused, lie.Truncated = "has seen more of the log", true
		if err := writeHello(conn, lie); err != nil {
			t.Error(err)
		}
	}()
	n2 := MemberID{Node: "n2", Dir: n1.BootstrapMembers[1].Dir}
	if _, err := n1.Listener().Dial(n2.ServerID(), 5*time.Second); err == nil {
		t.Error("the stranger's answer is accepted")
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	<-answered
}
