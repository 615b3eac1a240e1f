package overhop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// connect registers a client at a fake node and runs it. It must be called in a
// synctest bubble.
func connect(t *testing.T, y *fakeCluster, o Options) (c *Client, ended chan error) {
	nc, _ := y.dial(t.Context(), "n1")
	c, err := Connect(t.Context(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- c.Run(t.Context()) }()
	return c, ended
}

// A node that violates the protocol ends the connection and all requests on it.
func TestClient_BadNode(t *testing.T) {
	push, _ := AppendFields(nil, 146, PushRID, Fields{})
	request, _ := AppendFields(nil, TPing, PushRID, Fields{})
	for name, sent := range map[string][]byte{
		"garbage":                []byte("HTTP/1.1 400 Bad Request\r\n"),
		"empty frame":            {0, 0, 0, 0},
		"too large":              {0x7f, 0, 0, 0},
		"no envelope":            frame.Append(nil, []byte{0x80}),
		"float":                  frame.Append(nil, []byte{0xca, 0, 0, 0, 0}),
		"unknown push":           push,
		"request":                request,
		"answer without request": AppendOK(nil, "999", EmptyMap),
		"answer without rid":     AppendOK(nil, "x", EmptyMap),
		"answer of no kind":      AppendMessage(nil, THi, "3", EmptyMap),
		"bad QUEST":              AppendMessage(nil, TQuest, PushRID, EmptyMap),
		"ERR without request":    AppendErr(nil, PushRID, CodeProtocolViolation, "no", nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			y := newFakeCluster(t)
			y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) { return nil, e.T == TPing || e.T == TStatus })
			c, ended := connect(t, y, Options{OnQuest: func(Quest) {}})
			asked := make(chan error, 2)
			for _, kind := range []int64{TPing, TStatus} {
				c.Go(kind, func(b []byte) []byte { return append(b, EmptyMap...) }, func(_ Raw, err error) { asked <- err })
			}
			y.node(0).send(sent)
			if err := <-ended; err == nil || strings.Contains(err.Error(), "closed") {
				t.Errorf("%s: run ended with %v", name, err)
			}
			for range 2 {
				if err := <-asked; !errors.Is(err, ErrClosed) {
					t.Errorf("%s: a request ended with %v", name, err)
				}
			}
			if _, err := c.Call(t.Context(), TPing, EmptyMap); !errors.Is(err, ErrClosed) {
				t.Errorf("%s: a later request ended with %v", name, err)
			}
			<-c.Closed()
		})
	}
}

// A request that cannot be encoded fails at once and does not affect others.
func TestClient_Unsendable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		c, _ := connect(t, y, Options{})
		var large *frame.TooLargeError
		if _, err := c.Enqueue(t.Context(), Enqueue{Queue: "q", Payload: AppendBin(nil, make([]byte, DefaultFrameLimit))}); !errors.As(err, &large) {
			t.Errorf("too large: %v", err)
		}
		for _, e := range []Enqueue{{Queue: "\xff"}, {Queue: "q", Payload: Raw{0xcb}}, {Queue: "q", Payload: Raw{0xc0, 0xc0}}} {
			if _, err := c.Enqueue(t.Context(), e); !errors.Is(err, ErrNotSendable) {
				t.Errorf("%+v: %v", e, err)
			}
		}
		if _, err := c.Call(t.Context(), TPing, EmptyMap); err != nil {
			t.Error(err)
		}
		c.Close()
	})
}

// Calls wait while a slow node has not read the earlier ones, and no longer.
func TestClient_CallsWaitForSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		y := newFakeCluster(t)
		n := &fakeNode{cluster: y, nc: ours, balance: map[string]int{}}
		released := make(chan struct{})
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			if e.T == TEnqueue {
				<-released
			}
			return nil, false
		})
		go n.run()
		c, err := Connect(t.Context(), theirs, Options{})
		if err != nil {
			t.Fatal(err)
		}
		go c.Run(t.Context())
		payload := AppendBin(nil, make([]byte, 300<<10))
		for range 20 {
			go c.Enqueue(t.Context(), Enqueue{Queue: "q", Payload: payload})
		}
		synctest.Wait()
		c.requests.mu.Lock()
		if got := len(c.requests.out); got > 2*maxUnsent {
			t.Errorf("%d bytes wait", got)
		}
		c.requests.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Call(ctx, TPing, EmptyMap); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call while the output is full: %v", err)
		}
		close(released)
		if got := len(n.messages(TEnqueue)); got != 20 {
			t.Errorf("%d of 20 requests came", got)
		}
		c.Close()
	})
}

// A node may send IDENT before the answer to REGISTER. Close fails the requests
// of a client that was never run.
func TestClient_IdentBeforeRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			if e.T == TRegister {
				n.send(AppendIdent(nil, time.Second, time.Now()))
			}
			return nil, false
		})
		nc, _ := y.dial(t.Context(), "n1")
		c, err := Connect(t.Context(), nc, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		c.Go(TPing, func(b []byte) []byte { return append(b, EmptyMap...) }, func(_ Raw, err error) { got <- err })
		c.Close()
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// selfSigned returns the TLS configuration of a node, and the roots of its clients.
func selfSigned(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"node.test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, roots
}

// serve runs a node on a port, under TLS if config is not nil, and returns its address.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	addr := ln.Addr().String()
	if config != nil {
		ln = tls.NewListener(ln, config)
	}
	y := newFakeCluster(t)
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go (&fakeNode{cluster: y, addr: "n1", nc: nc, balance: map[string]int{}}).run()
		}
	}()
	return addr
}

// Over TLS the node's name is verified.
func TestDial_TLS(t *testing.T) {
	config, roots := selfSigned(t)
	addr := serve(t, config)
	for _, c := range []struct {
		name string
		cfg  *tls.Config
		want string
	}{
		{"right", &tls.Config{RootCAs: roots}, ""},
		{"named", &tls.Config{RootCAs: roots, ServerName: "node.test"}, ""},
		{"other name", &tls.Config{RootCAs: roots, ServerName: "else.test"}, "TLS with node"},
		{"unknown authority", &tls.Config{}, "TLS with node"},
	} {
		client, err := Dial(t.Context(), addr, Options{TLS: c.cfg})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if client != nil {
			client.Close()
		}
	}
}
