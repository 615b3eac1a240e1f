// Package hostile implements clients that violate the Overhop protocol or overload
// a node, and a foreign server in the cluster's network. It is for tests and
// drills.
package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// Attack is the behavior of one hostile connection until the node closes it or the
// context ends, which closes it too. Its errors are ignored.
type Attack struct {
	Name   string
	Weight int // number of connections in a full attack
	do     func(ctx context.Context, nc net.Conn)
}

// All returns all attacks. bait is the id of a job with a large body in the paused
// queue "lure".
func All(bait string) []Attack {
	million := millionKeys()
	return []Attack{
		{"zero length", 100, send([]byte{0, 0, 0, 0})},
		{"oversized", 100, send([]byte{0xff, 0xff, 0xff, 0xff, 0x84})},
		{"announced", 100, send([]byte{0, 0x80, 0, 0, 0x84})},
		{"random", 100, func(_ context.Context, nc net.Conn) { nc.Write(randomBytes(4 << 10)); io.Copy(io.Discard, nc) }},
		{"TLS", 50, send([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))},
		{"HTTP", 50, send([]byte("GET / HTTP/1.1\r\nHost: yard\r\n\r\n"))},
		{"mute", 200, func(_ context.Context, nc net.Conn) { io.Copy(io.Discard, nc) }},
		{"slow", 200, slowHello},
		{"never registers", 200, send(overhop.AppendMessage(nil, overhop.THello, "1", overhop.EmptyMap))},
		{"never reads", 30, neverRead(bait)},
		{"idle worker", 100, registered(func(_ context.Context, nc net.Conn) { io.Copy(io.Discard, nc) })},
		{"claimed million", 20, registered(sendBriefly(message(overhop.TEnqueue, "\xdf\x00\x0f\x42\x40\xa1a")))},
		{"real million", 4, registered(sendBriefly(million))},
		{"nested", 20, registered(sendBriefly(frame.Append(nil, append([]byte{0x81, 0xa1, 'p'}, bytes.Repeat([]byte{0x91}, 100_000)...))))},
		{"floods SUBSCRIBE", 20, registered(flood(overhop.TSubscribe, func(int) overhop.Fields { return overhop.Fields{"q": "lure", "credits": 0} }))},
		{"floods AWAIT", 20, registered(flood(overhop.TAwait, func(int) overhop.Fields {
			return overhop.Fields{"jid": bait, "timeout_ms": 600_000}
		}))},
		{"floods ADDQUEUE", 2, registered(limitTime(100, flood(overhop.TAddQueue, func(int) overhop.Fields {
			return overhop.Fields{"name": "x" + strconv.FormatUint(rand.Uint64(), 36)}
		})))},
		{"floods ENQUEUE", 4, registered(limitTime(200, flood(overhop.TEnqueue, func(int) overhop.Fields {
			return overhop.Fields{"q": "lure", "notify": true}
		})))},
		{"floods BEAT", 10, registered(flood(overhop.TBeat, func(int) overhop.Fields {
			return overhop.Fields{"jobs": []any{overhop.Fields{"jid": bait, "tok": randomBytes(overhop.TokenLen)}}}
		}))},
		{"breaks order", 50, registered(send(overhop.AppendMessage(nil, overhop.TRegister, "3", overhop.EmptyMap)))},
	}
}

// Run repeats the attack on a new connection each time, until ctx ends.
func (a Attack) Run(ctx context.Context, edge string) {
	var d net.Dialer
	for ctx.Err() == nil {
		if nc, err := d.DialContext(ctx, "tcp", edge); err == nil {
			stop := context.AfterFunc(ctx, func() { nc.Close() })
			a.do(ctx, nc)
			stop()
			nc.Close()
		}
		if backoff.Sleep(ctx, 200*time.Millisecond) != nil { // leave processor time to the node
			return
		}
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// send writes b and waits until the connection is closed.
func send(b []byte) func(context.Context, net.Conn) {
	return func(_ context.Context, nc net.Conn) {
		nc.Write(b)
		io.Copy(io.Discard, nc)
	}
}

// sendBriefly writes b and closes the connection after two seconds at the latest,
// to limit the memory that the attack itself needs.
func sendBriefly(b []byte) func(context.Context, net.Conn) {
	return func(_ context.Context, nc net.Conn) {
		nc.Write(b)
		nc.SetReadDeadline(time.Now().Add(2 * time.Second))
		io.Copy(io.Discard, nc)
	}
}

// slowHello sends HELLO, one byte per second.
func slowHello(ctx context.Context, nc net.Conn) {
	for _, b := range overhop.AppendMessage(nil, overhop.THello, "1", overhop.EmptyMap) {
		if _, err := nc.Write([]byte{b}); err != nil || backoff.Sleep(ctx, time.Second) != nil {
			return
		}
	}
}

// registered registers as a worker with the delivery extension before the attack.
func registered(then func(context.Context, net.Conn)) func(context.Context, net.Conn) {
	return func(ctx context.Context, nc net.Conn) {
		b, _ := overhop.AppendFields(nil, overhop.THello, "1", overhop.Fields{"ext": []string{overhop.Delivery}})
		b = overhop.AppendMessage(b, overhop.TRegister, "2", overhop.EmptyMap)
		if _, err := nc.Write(b); err == nil {
			then(ctx, nc)
		}
	}
}

// neverRead sends requests with large answers as fast as it can and reads nothing.
func neverRead(bait string) func(context.Context, net.Conn) {
	return registered(func(ctx context.Context, nc net.Conn) {
		var b []byte
		for range 100 {
			b, _ = overhop.AppendFields(b, overhop.TJob, "j", overhop.Fields{"jid": bait})
			b = overhop.AppendMessage(b, overhop.TStatus, "s", overhop.EmptyMap)
		}
		for ctx.Err() == nil {
			if _, err := nc.Write(b); err != nil {
				return
			}
		}
	})
}

// flood sends a request each millisecond, and reads and drops the answers.
func flood(t int64, p func(i int) overhop.Fields) func(context.Context, net.Conn) {
	return func(ctx context.Context, nc net.Conn) {
		go io.Copy(io.Discard, nc) // ends when the caller closes nc
		for i := 0; ctx.Err() == nil; i++ {
			b, _ := overhop.AppendFields(nil, t, strconv.Itoa(i), p(i))
			if _, err := nc.Write(b); err != nil || backoff.Sleep(ctx, time.Millisecond) != nil {
				return
			}
		}
	}
}

// limitTime ends an attack after n milliseconds, because what its requests create
// stays, and then keeps the connection open until ctx ends.
func limitTime(n int, attack func(context.Context, net.Conn)) func(context.Context, net.Conn) {
	return func(ctx context.Context, nc net.Conn) {
		short, cancel := context.WithTimeout(ctx, time.Duration(n)*time.Millisecond)
		defer cancel()
		attack(short, nc)
		<-ctx.Done()
	}
}

func message(t int64, p string) []byte {
	return overhop.AppendMessage(nil, t, "1", overhop.Raw(p))
}

// millionKeys returns an ENQUEUE to a queue that does not exist, whose body is a
// map of a million keys.
func millionKeys() []byte {
	body := overhop.AppendMap(nil, 1_000_000)
	for i := range 1_000_000 {
		body = fmt.Appendf(body, "\xa4%04x\x01", i&0xffff)
	}
	b, _ := overhop.AppendFields(nil, overhop.TEnqueue, "1", overhop.Fields{"q": "none", "job_payload": overhop.Raw(body)})
	return b
}

// Intruder is a foreign NATS server that has joined the routes of a cluster. The
// members cannot tell its messages in the YARD account from each other's.
type Intruder struct {
	srv *server.Server
	nc  *nats.Conn
}

// Connect starts a server that joins routes without a secret. url is the address
// for clients of a member, from which the name of the NATS cluster is read.
func Connect(url string, routes ...string) (*Intruder, error) {
	probe, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	name := probe.ConnectedClusterName()
	probe.Close()
	for i := range routes {
		routes[i] = fmt.Sprintf("%q", "nats-route://"+routes[i])
	}
	opts := &server.Options{}
	err = opts.ProcessConfigString(fmt.Sprintf(`
server_name: intruder
listen: "127.0.0.1:-1"
cluster { name: %q, listen: "127.0.0.1:-1", no_advertise: true, pool_size: 3, accounts: [YARD], routes: [%s] }
accounts { YARD { jetstream: enabled, users: [ { user: intruder, password: intruder } ] } }
`, name, strings.Join(routes, ", ")))
	if err != nil {
		return nil, err
	}
	opts.NoSigs, opts.NoLog = true, true
	i := &Intruder{}
	if i.srv, err = server.NewServer(opts); err != nil {
		return nil, err
	}
	i.srv.Start()
	if !i.srv.ReadyForConnections(10 * time.Second) {
		i.Close()
		return nil, errors.New("the intruder's server does not start")
	}
	if i.nc, err = nats.Connect("", nats.InProcessServer(i.srv), nats.UserInfo("intruder", "intruder")); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// Close stops the server.
func (i *Intruder) Close() {
	if i.nc != nil {
		i.nc.Close()
	}
	i.srv.Shutdown()
	i.srv.WaitForShutdown()
}

// Ask sends a request, without a body if request is nil, and decodes the answer. An
// answer that contains an error is returned as an error.
func (i *Intruder) Ask(ctx context.Context, subject string, request, answer any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return err
		}
	}
	m, err := i.nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	var failed struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := errors.Join(json.Unmarshal(m.Data, &failed), json.Unmarshal(m.Data, answer)); err != nil {
		return err
	}
	if failed.Error != nil {
		return fmt.Errorf("%s: %s", subject, failed.Error.Description)
	}
	return nil
}
