package runnerpool

// PoolStatus is how one pool is doing.
type PoolStatus struct {
	Runner   string         `json:"runner"`
	Managed  bool           `json:"managed"`
	Size     int            `json:"size"`  // processes there should be
	Up       int            `json:"up"`    // processes that take dispatches
	Slots    int            `json:"slots"` // of the processes that are up
	InFlight int            `json:"in_flight"`
	Looping  int            `json:"crash_looping"`    // members in a crash loop
	Reason   string         `json:"reason,omitempty"` // why not all are up: that of the first one down
	Members  []MemberStatus `json:"members"`
}

// MemberStatus is how one place in a pool is doing.
type MemberStatus struct {
	Worker   string `json:"worker,omitempty"` // "": down
	Port     int    `json:"port,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Slots    int    `json:"slots"`
	InFlight int    `json:"in_flight"`
	Restarts int    `json:"restarts"`
	Looping  bool   `json:"crash_looping,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Status lists the pools by name.
func (p *Pools) Status() []PoolStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pools []PoolStatus
	for _, m := range p.members { // in order of their pools
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
		if s.Looping {
			pool.Looping++
		}
	}
	return pools
}

// status is read under the pools' lock.
func (m *member) status() MemberStatus {
	s := MemberStatus{Port: m.port, PID: m.pid, Restarts: m.restarts, Looping: m.looping, Reason: m.reason}
	if w := m.worker; w != nil {
		s.Worker, s.Slots, s.InFlight = w.name, m.cfg.MaxInFlight, w.busy
	}
	return s
}
