package sim

import (
	"fmt"
	"time"

	"yardmaster/scheduler"
)

// breakThings has something go wrong every now and then, each for a while.
func (y *yard) breakThings() {
	y.net.lossy = []int{0, 0, 20, 150}[y.pick("lossy", 4)]
	y.breakNext()
}

func (y *yard) breakNext() {
	if time.Since(y.began) >= calmFor+stormFor {
		return
	}
	y.after(y.between("next fault", 50*time.Millisecond, 2500*time.Millisecond), "fault", func() {
		if y.storms() {
			y.fault(y.pick("fault", 100), y.nodes[y.pick("whose", members)])
			y.breakNext()
		}
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
	case n < 25:
		y.crash(at, lasts)
	case n < 45:
		y.partition(at, lasts)
	case n < 55:
		y.tell("%s is frozen for %s", at.name, lasts)
		y.net.frozen[at.name] = time.Now().Add(lasts)
		y.raft.look()
		y.after(lasts+time.Millisecond, "thaw", y.raft.look)
	case n < 70:
		if l := y.raft.leader; l != nil {
			y.tell("another is to lead")
			y.raft.elect(l)
		}
	case n < 85:
		lane := y.pick("which lane", members)
		y.tell("lane %d is down for %s", lane, lasts)
		y.lanes.lanes[lane].down = time.Now().Add(lasts)
	case n < 93:
		story := scheduler.Story(y.pick("which story", 3))
		y.tell("%s cannot be written for %s", story, lasts)
		y.tales.down[story] = time.Now().Add(lasts)
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

func (y *yard) crash(at *node, lasts time.Duration) {
	if !at.life.up {
		return
	}
	at.life.crash()
	y.after(lasts, "restart "+at.name, func() { y.restart(at) })
}

func (y *yard) restart(at *node) {
	if !at.life.up {
		at.start()
		y.raft.look()
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
