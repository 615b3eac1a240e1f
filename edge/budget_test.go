package edge

import (
	"encoding/binary"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/internal/frame"
)

const mib = 1 << 20

// narrow is a door with room for two large frames.
func narrow() Config {
	return Config{Wire: WireConfig{MaxEnvelope: mib + 2*questRoom}, Limits: LimitsConfig{FrameMemory: 2 * mib}}
}

// large is an ENQUEUE in a frame of exactly 1 MiB of payload.
func large() []byte {
	build := func(n int) []byte {
		b, _ := overhop.AppendFields(nil, overhop.TEnqueue, "big", fields{"q": "jobs", "job_payload": strings.Repeat("x", n)})
		return b
	}
	slack := len(build(mib)) - frame.HeaderLen - mib
	return build(mib - slack)
}

// free is how much of the budget nobody has.
func (r *rig) free() int {
	synctest.Wait()
	r.server.frames.mu.Lock()
	defer r.server.frames.mu.Unlock()
	return r.server.frames.free
}

// writes sends what the server may be slow to take.
func (p *peer) writes(b []byte) {
	go func() {
		p.nc.SetWriteDeadline(time.Now().Add(time.Hour))
		p.nc.Write(b)
	}()
}

// Large frames beyond the budget wait in the order they came; small ones pass
// them by, and what a frame took is free again once its answer is formed.
func TestBudget_LargeFramesWait(t *testing.T) {
	bubble(t, narrow(), func(r *rig) {
		r.yard.holding = true
		var peers []*peer
		for range 5 {
			p := r.register(true)
			p.writes(large())
			peers = append(peers, p)
			synctest.Wait()
		}
		if got := r.free(); got != 0 {
			t.Errorf("%d bytes are free, want none", got)
		}
		small := r.register(true)
		small.ask(overhop.TPing, nil, overhop.TPong)
		for i, p := range peers {
			synctest.Wait()
			r.yard.mu.Lock()
			waiting := len(r.yard.hold)
			answer := r.yard.hold[0]
			r.yard.hold = r.yard.hold[1:]
			r.yard.mu.Unlock()
			if want := min(2, len(peers)-i); waiting != want {
				t.Errorf("%d large frames are in hand after %d answers, want %d", waiting, i, want)
			}
			answer()
			p.expect(overhop.TOK, "big")
		}
		if got := r.free(); got != 2*mib {
			t.Errorf("%d bytes are free after all, want %d", got, 2*mib)
		}
	})
}

// Clients that begin large frames and dawdle fill the budget for as long as a
// frame may take, and not longer. Who waits behind them gets through.
func TestBudget_Dawdlers(t *testing.T) {
	bubble(t, narrow(), func(r *rig) {
		for range 4 { // two rounds of what fits
			p := r.register(true)
			p.writes(large()[:100<<10])
			synctest.Wait()
		}
		honest := r.register(true)
		honest.writes(large())
		synctest.Wait()
		round := 34 * time.Second // 30 s, and 4 for a MiB
		time.Sleep(2*round - time.Millisecond)
		honest.quiet()
		time.Sleep(2 * time.Millisecond)
		honest.expect(overhop.TOK, "big")
		if got := r.free(); got != 2*mib {
			t.Errorf("%d bytes are free after all, want %d", got, 2*mib)
		}
		if n := r.server.Counts().Registered; n != 1 {
			t.Errorf("%d clients are left, want the honest one", n)
		}
	})
}

// A frame once begun must go on, however small; between frames there is time.
func TestBudget_FrameBegunMustEnd(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
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
		p.write(append(ping, ping[:frame.HeaderLen]...)) // begun behind a whole one
		p.expect(overhop.TPong, "p")
		time.Sleep(30*time.Second - time.Millisecond)
		p.quiet()
		time.Sleep(2 * time.Millisecond)
		p.closed()
		stranger := r.connect()
		stranger.write(binary.BigEndian.AppendUint32(nil, 100))
		time.Sleep(time.Minute)
		stranger.closed()
	})
}

// A frame that breaks off, and one that is refused, give back what they took;
// and a node stops though clients wait.
func TestBudget_GivenBack(t *testing.T) {
	bubble(t, narrow(), func(r *rig) {
		broken := r.register(true)
		broken.writes(large()[:mib/2])
		if got := r.free(); got != mib {
			t.Errorf("%d bytes are free, want %d", got, mib)
		}
		broken.nc.Close()
		wrong := r.register(true)
		wrong.writes(append(binary.BigEndian.AppendUint32(nil, mib), make([]byte, mib)...))
		synctest.Wait()
		wrong.closed()
		refused := r.register(true)
		b, _ := overhop.AppendFields(nil, overhop.TQueue, "big", fields{"q": strings.Repeat("x", 100<<10)})
		refused.writes(b)
		refused.expect(overhop.TOK, "big")
		if got := r.free(); got != 2*mib {
			t.Errorf("%d bytes are free, want %d", got, 2*mib)
		}
		for range 4 {
			p := r.register(true)
			p.writes(large()[:mib/2])
		}
		if got := r.free(); got != 0 {
			t.Errorf("%d bytes are free, want none", got)
		}
	})
}
