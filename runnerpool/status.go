package runnerpool

import "github.com/yardmaster-dev/yardmaster/api"

// Status returns the pools sorted by name.
func (p *Pools) Status() []api.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pools []api.Pool
	for _, m := range p.members { // sorted by pool
		if n := len(pools); n == 0 || pools[n-1].Runner != m.runner {
			pools = append(pools, api.Pool{Runner: m.runner, Managed: p.cfg.Management == Managed})
		}
		pool := &pools[len(pools)-1]
		s := m.status()
		pool.Size++
		pool.Members = append(pool.Members, s)
		pool.InFlight += s.InFlight
		pool.Slots += s.Slots
		if s.Worker != "" {
			pool.Up++
		} else if pool.Reason == "" {
			pool.Reason = s.Reason
		}
		if s.CrashLooping {
			pool.CrashLooping++
		}
	}
	return pools
}

// status returns the member's state. Pools.mu is held.
func (m *member) status() api.PoolProcess {
	s := api.PoolProcess{Port: m.port, PID: m.pid, Restarts: m.restarts, CrashLooping: m.crashLooping, Reason: m.reason}
	if w := m.worker; w != nil {
		s.Worker, s.Slots, s.InFlight = w.name, m.cfg.MaxInFlight, w.busy
	}
	return s
}
