// Package hostile is what clients do to a node that the protocol forbids, or that
// is too much: for a test and for drills.
package hostile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/internal/backoff"
	"yardmaster/internal/frame"
)

// Attack is what one hostile connection does until the node closes it or the
// context ends, which closes it too. Errors are the expected end.
type Attack struct {
	Name  string
	Share int // connections of every hundred
	do    func(ctx context.Context, nc net.Conn)
}

// Attacks are all that is done to a node at once. lure is a job with a large
// body in the paused queue "lure".
func Attacks(lure string) []Attack {
	million := deepMillion()
	return []Attack{
		{"zero length", 100, bytesOnly([]byte{0, 0, 0, 0})},
		{"oversized", 100, bytesOnly([]byte{0xff, 0xff, 0xff, 0xff, 0x84})},
		{"announced", 100, bytesOnly([]byte{0, 0x80, 0, 0, 0x84})},
		{"random", 100, func(_ context.Context, nc net.Conn) { nc.Write(noise(4 << 10)); io.Copy(io.Discard, nc) }},
		{"TLS", 50, bytesOnly([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))},
		{"HTTP", 50, bytesOnly([]byte("GET / HTTP/1.1\r\nHost: yard\r\n\r\n"))},
		{"mute", 200, func(_ context.Context, nc net.Conn) { io.Copy(io.Discard, nc) }},
		{"slow", 200, slow},
		{"never registers", 200, bytesOnly(overhop.AppendMessage(nil, overhop.THello, "1", overhop.EmptyMap))},
		{"never reads", 30, deaf(lure)},
		{"idle worker", 100, registered(func(_ context.Context, nc net.Conn) { io.Copy(io.Discard, nc) })},
		{"claimed million", 20, registered(bytesOnlyOnce(message(overhop.TEnqueue, "\xdf\x00\x0f\x42\x40\xa1a")))},
		{"real million", 4, registered(bytesOnlyOnce(million))},
		{"nested", 20, registered(bytesOnlyOnce(frame.Append(nil, append([]byte{0x81, 0xa1, 'p'}, bytes.Repeat([]byte{0x91}, 100_000)...))))},
		{"floods SUBSCRIBE", 20, registered(flood(overhop.TSubscribe, func(int) overhop.Fields { return overhop.Fields{"q": "lure", "credits": 0} }))},
		{"floods AWAIT", 20, registered(flood(overhop.TAwait, func(int) overhop.Fields {
			return overhop.Fields{"jid": lure, "timeout_ms": 600_000}
		}))},
		{"floods ADDQUEUE", 2, registered(few(100, flood(overhop.TAddQueue, func(int) overhop.Fields {
			return overhop.Fields{"name": "x" + strconv.FormatUint(rand.Uint64(), 36)}
		})))},
		{"floods ENQUEUE", 4, registered(few(200, flood(overhop.TEnqueue, func(int) overhop.Fields {
			return overhop.Fields{"q": "lure", "notify": true}
		})))},
		{"floods BEAT", 10, registered(flood(overhop.TBeat, func(int) overhop.Fields {
			return overhop.Fields{"jobs": []any{overhop.Fields{"jid": lure, "tok": noise(overhop.TokenLen)}}}
		}))},
		{"breaks order", 50, registered(bytesOnly(overhop.AppendMessage(nil, overhop.TRegister, "3", overhop.EmptyMap)))},
	}
}

// Run keeps one attacker at it until ctx ends: what the node closes comes again.
func (a Attack) Run(ctx context.Context, edge string) {
	var d net.Dialer
	for ctx.Err() == nil {
		if nc, err := d.DialContext(ctx, "tcp", edge); err == nil {
			stop := context.AfterFunc(ctx, func() { nc.Close() })
			a.do(ctx, nc)
			stop()
			nc.Close()
		}
		if backoff.Sleep(ctx, 200*time.Millisecond) != nil { // not to starve the machine both share
			return
		}
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// bytesOnly says something and waits for the end.
func bytesOnly(b []byte) func(context.Context, net.Conn) {
	return func(_ context.Context, nc net.Conn) {
		nc.Write(b)
		io.Copy(io.Discard, nc)
	}
}

// bytesOnlyOnce says it, and then holds what it got until it is closed or some
// time has passed: the attack itself must stay affordable.
func bytesOnlyOnce(b []byte) func(context.Context, net.Conn) {
	return func(_ context.Context, nc net.Conn) {
		nc.Write(b)
		nc.SetReadDeadline(time.Now().Add(2 * time.Second))
		io.Copy(io.Discard, nc)
	}
}

// slow says HELLO a byte a second.
func slow(ctx context.Context, nc net.Conn) {
	for _, b := range overhop.AppendMessage(nil, overhop.THello, "1", overhop.EmptyMap) {
		if _, err := nc.Write([]byte{b}); err != nil || backoff.Sleep(ctx, time.Second) != nil {
			return
		}
	}
}

// registered begins as a worker that knows the delivery extension.
func registered(then func(context.Context, net.Conn)) func(context.Context, net.Conn) {
	return func(ctx context.Context, nc net.Conn) {
		b, _ := overhop.AppendFields(nil, overhop.THello, "1", overhop.Fields{"ext": []string{overhop.Delivery}})
		b = overhop.AppendMessage(b, overhop.TRegister, "2", overhop.EmptyMap)
		if _, err := nc.Write(b); err == nil {
			then(ctx, nc)
		}
	}
}

// deaf asks for large answers as fast as it can and reads none.
func deaf(lure string) func(context.Context, net.Conn) {
	return registered(func(ctx context.Context, nc net.Conn) {
		var b []byte
		for range 100 {
			b, _ = overhop.AppendFields(b, overhop.TJob, "j", overhop.Fields{"jid": lure})
			b = overhop.AppendMessage(b, overhop.TStatus, "s", overhop.EmptyMap)
		}
		for ctx.Err() == nil {
			if _, err := nc.Write(b); err != nil {
				return
			}
		}
	})
}

// flood pipelines requests, and reads so that the node can go on.
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

// few ends a flood after so many requests' time, because what they leave
// behind stays, and waits for the end.
func few(n int, attack func(context.Context, net.Conn)) func(context.Context, net.Conn) {
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

// deepMillion is an ENQUEUE for no queue whose body is a map of a million keys.
func deepMillion() []byte {
	body := overhop.AppendMap(nil, 1_000_000)
	for i := range 1_000_000 {
		body = fmt.Appendf(body, "\xa4%04x\x01", i&0xffff)
	}
	b, _ := overhop.AppendFields(nil, overhop.TEnqueue, "1", overhop.Fields{"q": "none", "job_payload": overhop.Raw(body)})
	return b
}
