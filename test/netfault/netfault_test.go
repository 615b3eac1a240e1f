package netfault

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// newEchoProxy returns a proxy in front of a server that echoes what it reads.
func newEchoProxy(t *testing.T) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			work.Go(func() { io.Copy(c, c); c.Close() })
		}
	})
	work.Go(func() {
		if err := p.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); ln.Close(); work.Wait() })
	return p
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func sendRecv(c net.Conn, word string, wait time.Duration) (string, error) {
	if _, err := c.Write([]byte(word)); err != nil {
		return "", err
	}
	return recv(c, len(word), wait)
}

func recv(c net.Conn, n int, wait time.Duration) (string, error) {
	c.SetReadDeadline(time.Now().Add(wait))
	got := make([]byte, n)
	_, err := io.ReadFull(c, got)
	return string(got), err
}

func TestProxy_Stall(t *testing.T) {
	p := newEchoProxy(t)
	c := dial(t, p)
	if got, err := sendRecv(c, "one", 5*time.Second); got != "one" {
		t.Fatal(got, err)
	}
	p.Stall()
	if got, err := sendRecv(c, "two", 100*time.Millisecond); !os.IsTimeout(err) {
		t.Fatalf("a stalled connection carried %q, %v", got, err)
	}
	p.Heal()
	if got, err := recv(c, 3, 5*time.Second); got != "two" {
		t.Fatalf("after healing the client read %q, %v", got, err)
	}
}

func TestProxy_Cut(t *testing.T) {
	p := newEchoProxy(t)
	c := dial(t, p)
	if got, err := sendRecv(c, "one", 5*time.Second); got != "one" {
		t.Fatal(got, err)
	}
	p.Cut()
	if got, err := recv(c, 1, 5*time.Second); err == nil || os.IsTimeout(err) {
		t.Fatalf("a cut connection delivered %q, %v", got, err)
	}
	if got, err := sendRecv(dial(t, p), "two", 5*time.Second); err == nil {
		t.Fatalf("a new connection carried %q while the proxy was cut", got)
	}
	p.Heal()
	if got, err := sendRecv(dial(t, p), "three", 5*time.Second); got != "three" {
		t.Fatal(got, err)
	}
}
