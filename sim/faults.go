package sim

import (
	"fmt"
	"time"

	"yardmaster/scheduler"
)

// breakThings has something go wrong every now and then, each for a while.
func (y *yard) breakThings() {
	if !y.plan.Quiet {
		y.net.lossy = []int{0, 0, 20, 150}[y.pick("lossy", 4)]
	}
	y.breakNext()
}

func (y *yard) breakNext() {
	if time.Since(y.began) >= calmFor+stormFor {
		return
	}
	y.after(y.between("next fault", 50*time.Millisecond, 2500*time.Millisecond), "fault", func() {
		if !y.storms() {
			return
		}
		if y.strikes() {
			y.fault(y.pick("fault", 100), y.nodes[y.pick("whose", members)])
		}
		y.breakNext()
	})
}

// fault breaks one thing, which is mended before the storm is over or with it.
func (y *yard) fault(n int, at *node) {
	lasts := y.between("fault lasts", 20*time.Millisecond, 9*time.Second)
	if y.chance("short", 400) {
		lasts /= 20
	}
	lasts = min(lasts, time.Until(y.began.Add(calmFor+stormFor)))
	switch {
	case n < 23:
		y.crash(at, lasts)
	case n < 25:
		y.tell("the power goes")
		for _, n := range y.nodes {
			y.crash(n, y.between("dark "+n.name, lasts/2, lasts+time.Millisecond))
		}
	case n < 43:
		y.partition(at, lasts)
	case n < 51:
		y.freeze(at, lasts)
	case n < 55:
		y.tell("%s's disk takes nothing for %s", at.name, lasts)
		y.net.stuck[at.name] = time.Now().Add(lasts)
		y.raft.look()
		y.after(lasts+time.Millisecond, "disk "+at.name, y.raft.look)
	case n < 68:
		if l := y.raft.leader; l != nil {
			y.tell("another is to lead")
			y.raft.elect(l)
		}
	case n < 72:
		y.misset(at, lasts)
	case n < 85:
		lane := y.pick("which lane", members)
		y.tell("lane %d is down for %s", lane, lasts)
		y.lanes.lanes[lane].down = time.Now().Add(lasts)
	case n < 92:
		story := scheduler.Story(y.pick("which story", 3))
		y.tell("%s cannot be written for %s", story, lasts)
		y.tales.down[story] = time.Now().Add(lasts)
	case n < 94:
		y.lanes.loseEnd(uint8(y.pick("which end", members)))
	case at.life.up:
		y.tell("%s drains", at.name)
		at.life.agent.Drain() // until its next start
		y.after(lasts, "restart "+at.name, func() {
			if at.life.up {
				at.life.crash()
			}
			y.restart(at)
		})
	}
}

func (y *yard) freeze(at *node, lasts time.Duration) {
	y.tell("%s is frozen for %s", at.name, lasts)
	y.net.frozen[at.name] = time.Now().Add(lasts)
	y.raft.look()
	y.after(lasts+time.Millisecond, "thaw", y.raft.look)
}

// misset puts one member's clock ahead or back. Never two, as far as their last
// beats tell: against a wrong majority nothing helps.
func (y *yard) misset(at *node, lasts time.Duration) {
	if time.Now().Before(y.net.wrong) {
		return
	}
	y.net.wrong = time.Now().Add(lasts + 6*time.Second)
	by := y.between("clock by", time.Millisecond, time.Hour)
	if y.chance("clock back", 500) {
		by = -by
	}
	y.tell("%s's clock is off by %s for %s", at.name, by, lasts)
	y.net.skew[at.name] = by
	y.after(lasts, "clock of "+at.name, func() { delete(y.net.skew, at.name) })
}

func (y *yard) crash(at *node, lasts time.Duration) {
	if !at.life.up {
		return
	}
	at.life.crash()
	y.after(lasts, "restart "+at.name, func() { y.restart(at) })
}

func (y *yard) restart(at *node) {
	if !at.life.up && at != y.outsider {
		at.start()
		y.raft.look()
	}
}

// loseEnd takes the end of a lane away, some of it folded already, as if its
// stream had come back without. Nobody may pass over that: it has to be told,
// until it is mended.
func (s *lanes) loseEnd(number uint8) {
	l := s.y.raft.leader
	if l == nil || s.lost() != nil || !s.made {
		return
	}
	lane, folded := &s.lanes[number], l.ledger.Lanes()[number].Cursor
	left := folded - min(folded, 1+uint64(s.y.pick("lost", 3)))
	if left == 0 || left < lane.first {
		return
	}
	lane.cut = left
	s.y.tell("lane %d ends at %d, and was folded to %d", number, left, folded)
}

// lost is the lane that has lost its end; nil: none has.
func (s *lanes) lost() *lane {
	for i := range s.lanes {
		if s.lanes[i].cut > 0 {
			return &s.lanes[i]
		}
	}
	return nil
}

// expel leaves a node broken while the rest of the yard is healed: two of three
// have to do without it.
func (y *yard) expel() {
	if !y.chance("outsider", 400) || !y.strikes() {
		return
	}
	n := y.nodes[y.pick("outsider who", members)]
	const long = time.Hour
	y.outsider = n
	how := y.pick("outsider how", 5)
	y.tell("%s stays broken (%d)", n.name, how)
	switch how {
	case 0:
		if n.life.up {
			n.life.crash()
		}
	case 1:
		y.freeze(n, long)
	case 2:
		y.net.stuck[n.name] = time.Now().Add(long)
	default: // it hears nobody, or nobody hears it, or both
		for _, other := range y.nodes {
			if other != n {
				y.net.cut[[2]string{n.name, other.name}] = how == 3 || y.chance("deaf", 500)
				y.net.cut[[2]string{other.name, n.name}] = how == 4
			}
		}
	}
}

// partition cuts a node off from another or from all, in one direction or both.
func (y *yard) partition(at *node, lasts time.Duration) {
	how := y.pick("cut how", 3)
	one := y.pick("cut whom", members+2)
	for i, other := range y.nodes {
		if other == at || one < members && i != one {
			continue
		}
		there, back := [2]string{at.name, other.name}, [2]string{other.name, at.name}
		if how != 1 {
			y.net.cut[there] = true
		}
		if how != 2 {
			y.net.cut[back] = true
		}
		y.after(lasts, fmt.Sprintf("mend %s %s", at.name, other.name), func() {
			delete(y.net.cut, there)
			delete(y.net.cut, back)
			y.raft.look()
		})
	}
	y.tell("%s is cut off (%d, %d) for %s", at.name, how, one, lasts)
	y.raft.look()
}
