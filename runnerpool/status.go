package runnerpool

// PoolStatus is the state of one pool.
type PoolStatus struct {
	Runner       string         `json:"runner"`
	Managed      bool           `json:"managed"`
	Size         int            `json:"size"`  // configured processes
	Up           int            `json:"up"`    // processes that accept dispatches
	Slots        int            `json:"slots"` // slots of the processes that are up
	InFlight     int            `json:"in_flight"`
	CrashLooping int            `json:"crash_looping"`    // members in a crash loop
	Reason       string         `json:"reason,omitempty"` // why the first member that is down is down
	Members      []MemberStatus `json:"members"`
}

// MemberStatus is the state of one member of a pool.
type MemberStatus struct {
	Worker       string `json:"worker,omitempty"` // "": down
	Port         int    `json:"port,omitempty"`
	PID          int    `json:"pid,omitempty"`
	Slots        int    `json:"slots"`
	InFlight     int    `json:"in_flight"`
	Restarts     int    `json:"restarts"`
	CrashLooping bool   `json:"crash_looping,omitempty"`
	Reason       string `json:"reason,omitempty"`
}

// Status returns the pools sorted by name.
func (p *Pools) Status() []PoolStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pools []PoolStatus
	for _, m := range p.members { // sorted by pool
		if n := len(pools); n == 0 || pools[n-1].Runner != m.runner {
			pools = append(pools, PoolStatus{Runner: m.runner, Managed: p.cfg.Management == Managed})
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
func (m *member) status() MemberStatus {
	s := MemberStatus{Port: m.port, PID: m.pid, Restarts: m.restarts, CrashLooping: m.crashLooping, Reason: m.reason}
	if w := m.worker; w != nil {
		s.Worker, s.Slots, s.InFlight = w.name, m.cfg.MaxInFlight, w.busy
	}
	return s
}
