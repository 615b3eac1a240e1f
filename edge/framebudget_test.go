package edge

import (
	"encoding/binary"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

const mib = 1 << 20

// smallBudget is a configuration with memory for two large frames.
func smallBudget() Config {
	return Config{Wire: WireConfig{MaxEnvelope: mib + 2*questOverhead}, Limits: LimitsConfig{FrameMemory: 2 * mib}}
}

// largeFrame returns an ENQUEUE in a frame of exactly 1 MiB of payload.
func largeFrame() []byte {
	build := func(n int) []byte {
		b, _ := overhop.AppendFields(nil, overhop.TEnqueue, "big", fields{"q": "jobs", "job_payload": strings.Repeat("x", n)})
		return b
	}
	slack := len(build(mib)) - frame.HeaderLen - mib
	return build(mib - slack)
}

// freeBudget returns the available bytes of the frame budget, 0 while a frame
// waits.
func (h *harness) freeBudget() int {
	synctest.Wait()
	frames := h.server.frames
	return sort.Search(2*mib, func(n int) bool {
		ok := frames.TryAcquire(int64(n + 1))
		if ok {
			frames.Release(int64(n + 1))
		}
		return !ok
	})
}

// writeAsync writes what the server may be slow to read.
func (p *peer) writeAsync(b []byte) {
	go func() {
		p.nc.SetWriteDeadline(time.Now().Add(time.Hour))
		p.nc.Write(b)
	}()
}

// Large frames beyond the budget wait in order of arrival. Small frames pass
// them, and a frame's memory is free again once its answer is formed.
func TestBudget_LargeFramesWait(t *testing.T) {
	bubble(t, smallBudget(), func(r *harness) {
		r.cluster.holdReplies = true
		var peers []*peer
		for range 5 {
			p := r.register(true)
			p.writeAsync(largeFrame())
			peers = append(peers, p)
			synctest.Wait()
		}
		if got := r.freeBudget(); got != 0 {
			t.Errorf("%d bytes are free, want none", got)
		}
		small := r.register(true)
		small.ask(overhop.TPing, nil, overhop.TPong)
		for i, p := range peers {
			synctest.Wait()
			r.cluster.mu.Lock()
			waiting := len(r.cluster.heldReplies)
			answer := r.cluster.heldReplies[0]
			r.cluster.heldReplies = r.cluster.heldReplies[1:]
			r.cluster.mu.Unlock()
			if want := min(2, len(peers)-i); waiting != want {
				t.Errorf("%d large frames are being handled after %d answers, want %d", waiting, i, want)
			}
			answer()
			p.expect(overhop.TOK, "big")
		}
		if got := r.freeBudget(); got != 2*mib {
			t.Errorf("%d bytes are free after all, want %d", got, 2*mib)
		}
	})
}

// Clients that send large frames too slowly hold the budget no longer than a
// frame may take. Clients that wait behind them are served.
func TestBudget_SlowSenders(t *testing.T) {
	bubble(t, smallBudget(), func(r *harness) {
		for range 4 { // two rounds of what fits
			p := r.register(true)
			p.writeAsync(largeFrame()[:100<<10])
			synctest.Wait()
		}
		honest := r.register(true)
		honest.writeAsync(largeFrame())
		synctest.Wait()
		round := 34 * time.Second // 30 s, and 4 for a MiB
		time.Sleep(2*round - time.Millisecond)
		honest.expectNothing()
		time.Sleep(2 * time.Millisecond)
		honest.expect(overhop.TOK, "big")
		if got := r.freeBudget(); got != 2*mib {
			t.Errorf("%d bytes are free after all, want %d", got, 2*mib)
		}
		if n := r.server.Counts().Registered; n != 1 {
			t.Errorf("%d clients are left, want the honest one", n)
		}
	})
}

// A frame that has begun must be finished in time, however small it is; between
// frames there is no limit.
func TestBudget_FrameTimeout(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		ping := overhop.AppendMessage(nil, overhop.TPing, "p", overhop.EmptyMap)
		p := r.register(true)
		for range 3 {
			p.write(ping[:frame.HeaderLen+1])
			synctest.Wait()
			time.Sleep(29 * time.Second)
			p.write(ping[frame.HeaderLen+1:])
			p.expect(overhop.TPong, "p")
			time.Sleep(24 * time.Hour)
		}
		p.write(append(ping, ping[:frame.HeaderLen]...)) // the second one begins right after a whole one
		p.expect(overhop.TPong, "p")
		time.Sleep(30*time.Second - time.Millisecond)
		p.expectNothing()
		time.Sleep(2 * time.Millisecond)
		p.expectClosed()
		stranger := r.connect()
		stranger.write(binary.BigEndian.AppendUint32(nil, 100))
		time.Sleep(time.Minute)
		stranger.expectClosed()
	})
}

// A frame whose connection ends, and one that is refused, return their memory;
// and a server stops although clients wait.
func TestBudget_Released(t *testing.T) {
	bubble(t, smallBudget(), func(r *harness) {
		broken := r.register(true)
		broken.writeAsync(largeFrame()[:mib/2])
		if got := r.freeBudget(); got != mib {
			t.Errorf("%d bytes are free, want %d", got, mib)
		}
		broken.nc.Close()
		wrong := r.register(true)
		wrong.writeAsync(append(binary.BigEndian.AppendUint32(nil, mib), make([]byte, mib)...))
		synctest.Wait()
		wrong.expectClosed()
		refused := r.register(true)
		b, _ := overhop.AppendFields(nil, overhop.TQueue, "big", fields{"q": strings.Repeat("x", 100<<10)})
		refused.writeAsync(b)
		refused.expect(overhop.TOK, "big")
		if got := r.freeBudget(); got != 2*mib {
			t.Errorf("%d bytes are free, want %d", got, 2*mib)
		}
		for range 4 {
			p := r.register(true)
			p.writeAsync(largeFrame()[:mib/2])
		}
		if got := r.freeBudget(); got != 0 {
			t.Errorf("%d bytes are free, want none", got)
		}
	})
}
