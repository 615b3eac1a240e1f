package overhop

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// runProducer runs a test with a producer in a synctest bubble.
func runProducer(t *testing.T, test func(ctx context.Context, y *fakeCluster, p *Producer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		p := &Producer{Nodes: []string{"n1", "n2"}, Dial: y.dial, Log: discardLog}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		test(ctx, y, p)
		p.Close()
	})
}

// acceptJobs answers ENQUEUEs with an id made of the key.
func acceptJobs(n *fakeNode, e Envelope) (func(), bool) {
	return func() { n.ok(e, Fields{"jid": "mail:" + textOf(e.P.Get("key"))}) }, e.T == TEnqueue
}

// A job whose answer was lost is submitted again at another node, under the
// same key.
func TestProducer_LostAnswer(t *testing.T) {
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		drop := dropAnswers(TEnqueue, 1)
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			if then, ok := drop(n, e); ok {
				return then, ok
			}
			return acceptJobs(n, e)
		})
		jid, err := p.Enqueue(ctx, Enqueue{Queue: "mail", Payload: Fields{"to": "ann"}.Raw()})
		if err != nil {
			t.Fatal(err)
		}
		first, second := y.node(0).onlyMessage(TEnqueue), y.node(1).onlyMessage(TEnqueue)
		key := textOf(first.Get("key"))
		if uuid.Validate(key) == nil {
			t.Errorf("the key %s is a UUID, which a node takes for the job's id", key)
		}
		if key == "" || jid != "mail:"+key || textOf(second.Get("key")) != key || y.node(0).addr == y.node(1).addr {
			t.Errorf("job %s was submitted as %x and %x", jid, first, second)
		}
		other, err := p.Enqueue(ctx, Enqueue{Queue: "mail"})
		if err != nil || other == jid {
			t.Errorf("the next job is %s, %v", other, err)
		}
	})
}

// After UNAVAILABLE a call is repeated, finally at another node, until its
// context ends.
func TestProducer_Unavailable(t *testing.T) {
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			if e.T == TEnqueue && n.index == 0 {
				return func() { n.err(e, CodeUnavailable) }, true
			}
			return acceptJobs(n, e)
		})
		if _, err := p.Enqueue(ctx, Enqueue{Queue: "mail"}); err != nil {
			t.Error(err)
		}
		if got := len(y.node(0).messages(TEnqueue)); got != maxTries || y.count() != 2 {
			t.Errorf("%d tries at the first of %d nodes", got, y.count())
		}
		y.setAnswer(refuseAnswers(TEnqueue, CodeUnavailable, 1000))
		_, err := p.Enqueue(ctx, Enqueue{Queue: "mail"})
		if !errors.Is(err, context.DeadlineExceeded) || ErrorCode(err) != CodeUnavailable {
			t.Errorf("%v", err)
		}
	})
}

// A producer pauses between connections to nodes that accept it and close on
// its requests.
func TestProducer_BriefConnections(t *testing.T) {
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		const maxConns = 10 // pauses of 25 ms and more that double
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			return func() {
				if n.index >= maxConns {
					cancel() // otherwise fake time would not advance
				}
				n.nc.Close()
			}, e.T == TEnqueue
		})
		if _, err := p.Enqueue(ctx, Enqueue{Queue: "mail"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if got := y.count(); got < 3 || got > maxConns {
			t.Errorf("%d connections within a second", got)
		}
	})
}

func TestProducer_Refused(t *testing.T) {
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		y.setAnswer(refuseAnswers(TEnqueue, CodeDuplicateJob, 1))
		_, err := p.Enqueue(ctx, Enqueue{Queue: "mail"})
		if refusal, _ := errors.AsType[*RemoteError](err); ErrorCode(err) != CodeDuplicateJob || refusal.Details.getText("jid") != "mail:other" {
			t.Errorf("%v", err)
		}
		y.setAnswer(refuseAnswers(TEnqueue, CodeRateLimited, 1))
		_, err = p.Enqueue(ctx, Enqueue{Queue: "mail"})
		if refusal, _ := errors.AsType[*RemoteError](err); ErrorCode(err) != CodeRateLimited || refusal.RetryAfter() != 100*time.Millisecond {
			t.Errorf("%v", err)
		}
		if _, err := p.Enqueue(ctx, Enqueue{Queue: "mail", Payload: Raw{0xca, 0, 0, 0, 0}}); !errors.Is(err, ErrNotSendable) {
			t.Errorf("a float: %v", err)
		}
		if y.count() != 1 {
			t.Errorf("%d connections", y.count())
		}
	})
}

// Wait survives reconnects and takes a job's end from a push or from its
// record.
func TestProducer_Wait(t *testing.T) {
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			return func() {
				if jid := textOf(e.P.Get("jid")); jid == "mail:ended" {
					n.ok(e, Fields{"jid": jid, "status": "failed", "error": Fields{"message": "m", "type": "t"}, "runtime": Fields{"attempts_so_far": 3}})
				} else if jid == "mail:unknown" {
					n.err(e, CodeJobNotFound)
				} else {
					n.ok(e, Fields{"pending": true})
				}
			}, e.T == TAwait
		})
		end, err := p.Wait(ctx, "mail:ended")
		if err != nil || end.Fault == nil || end.Fault.Type != "t" || end.Attempts != 3 {
			t.Errorf("%+v, %v", end, err)
		}
		begin := time.Now()
		if _, err := p.Wait(ctx, "mail:unknown"); ErrorCode(err) != CodeJobNotFound || time.Since(begin) < unknownGrace {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() {
				end, err := p.Wait(ctx, "mail:later")
				var n int
				if err != nil || Unmarshal(end.Result, &n) != nil || n != 7 || end.Attempts != 1 {
					t.Errorf("%+v, %v", end, err)
				}
			})
		}
		synctest.Wait()
		y.node(0).nc.Close()
		time.Sleep(5 * time.Second)
		y.node(1).push(TJobEnd, Fields{"jid": "mail:later", "status": "completed", "result": 7, "error": nil, "attempts": 1})
		waiting.Wait()
		if len(p.waiters) > 0 {
			t.Errorf("still waiting for %v", p.waiters)
		}
	})
}

// Many calls share one connection without waiting for each other, and Close
// ends them.
func TestProducer_Close(t *testing.T) {
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) { return nil, e.T == TEnqueue })
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				if _, err := p.Enqueue(ctx, Enqueue{Queue: "mail"}); !errors.Is(err, ErrClosed) {
					t.Errorf("%v", err)
				}
			})
		}
		if got := len(y.node(0).messages(TEnqueue)); got != 100 || y.count() != 1 {
			t.Errorf("%d pending over %d connections", got, y.count())
		}
		p.Close()
		calls.Wait()
		if _, err := p.Enqueue(ctx, Enqueue{Queue: "mail"}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// If no node can be reached the error contains the reason, and a permanent
// refusal ends a call at once.
func TestProducer_NoNode(t *testing.T) {
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		y.dialErr = func(addr string) error { return fmt.Errorf("no node at %s", addr) }
		if _, err := p.Enqueue(ctx, Enqueue{Queue: "mail"}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no node at n") {
			t.Errorf("%v", err)
		}
	})
	runProducer(t, func(ctx context.Context, y *fakeCluster, p *Producer) {
		y.setAnswer(refuseAnswers(TRegister, CodeUnauthorized, 1))
		if _, err := p.Enqueue(ctx, Enqueue{Queue: "mail"}); ErrorCode(err) != CodeUnauthorized || y.count() != 1 {
			t.Errorf("%v", err)
		}
	})
	if _, err := new(Producer).Enqueue(t.Context(), Enqueue{}); err == nil || !strings.Contains(err.Error(), "no Nodes") {
		t.Errorf("%v", err)
	}
}

// A configuration that all nodes refuse is reported at once, with what to check. One that the
// node may accept later is tried until the context ends.
func TestProducer_Misconfigured(t *testing.T) {
	server, roots := selfSigned(t)
	mutual := server.Clone()
	mutual.ClientAuth = tls.RequireAnyClientCert
	old := server.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	plain, secured, strict := serve(t, nil), serve(t, server), serve(t, mutual)
	mutual12 := mutual.Clone()
	mutual12.MaxVersion = tls.VersionTLS12
	for name, c := range map[string]struct {
		nodes []string
		tls   *tls.Config
		want  string
	}{
		"HTTP":                  {[]string{answers(t, "HTTP/1.1 400 Bad Request\r\n\r\n", "\r\n\r\n")}, nil, "its port speaks HTTP, as http.listen of a node does"},
		"NATS":                  {[]string{answers(t, "INFO {}\r\n", "")}, nil, "its port speaks NATS, as nats.listen of a node does"},
		"no TLS":                {[]string{secured, secured}, nil, "its port requires TLS: configure TLS"},
		"another CA":            {[]string{secured, secured}, &tls.Config{}, "RootCAs"},
		"another host":          {[]string{secured}, &tls.Config{RootCAs: roots, ServerName: "else.test"}, "valid now and for this address"},
		"TLS at a plain port":   {[]string{plain}, &tls.Config{RootCAs: roots}, "its port does not speak TLS"},
		"no client certificate": {[]string{strict}, &tls.Config{RootCAs: roots}, "client certificate"},
		"the same, TLS 1.2":     {[]string{serve(t, mutual12)}, &tls.Config{RootCAs: roots}, "client certificate"},
		"other versions":        {[]string{serve(t, old)}, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, "protocol version"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Producer{Nodes: c.nodes, TLS: c.tls, Log: discardLog}
			defer p.Close()
			if _, err := p.Client(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q", err, c.want)
			}
		})
	}
	t.Run("one of two nodes", func(t *testing.T) {
		p := &Producer{Nodes: []string{secured, plain}, TLS: &tls.Config{RootCAs: roots}, Log: discardLog}
		defer p.Close()
		if _, err := p.Client(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// answers returns the address of a server that sends says once it has received after.
func answers(t *testing.T, says, after string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				var received []byte
				for chunk := make([]byte, 4096); !bytes.Contains(received, []byte(after)); {
					n, err := nc.Read(chunk)
					if err != nil {
						return
					}
					received = append(received, chunk[:n]...)
				}
				nc.Write([]byte(says))
				nc.Read(make([]byte, 1)) // until the client closes
			}()
		}
	}()
	return ln.Addr().String()
}

// A result that was omitted is not reported as an empty one.
func TestJobEnd_Omitted(t *testing.T) {
	for _, c := range []struct {
		payload Fields
		want    bool
	}{
		{Fields{"status": "completed", "result": nil}, false},
		{Fields{"status": "completed", "result": 7, "omitted": []string{"payload"}}, false},
		{Fields{"status": "completed", "result": nil, "omitted": []string{"payload", "result"}}, true},
	} {
		if end := parseJobEnd(c.payload.Raw()); end.Omitted != c.want {
			t.Errorf("%v: omitted is %t", c.payload, end.Omitted)
		}
	}
}
