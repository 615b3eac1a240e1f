package vigil

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config is what a keeper works with. The functions are called from one
// goroutine, but for Ask, and must not wait long.
type Config struct {
	Node    string
	Members func() []string // all of them, this node included; one if it is alone
	Disk    Disk

	// Check tells what else is wrong with this node, and how it stands.
	Check func(context.Context) Word
	// Ask hears a member's word; Say gives this node's to whoever asks.
	Ask func(member string) (Word, error)
	Say func(Word)
	// Leads tells whether this node holds the authority, HandOver gives it away.
	Leads    func() bool
	HandOver func(ctx context.Context, to string) error
	// Close is told why this node takes no job in, "" if it does, and whether
	// others do. It hears of changes only.
	Close func(why string, others bool)
}

// Every is how often a keeper looks, StaleAfter when a word is not counted any
// more.
const (
	Every      = time.Second
	StaleAfter = 4 * time.Second
	checkTime  = 800 * time.Millisecond
)

// Keeper watches one node.
type Keeper struct {
	cfg  Config
	log  *slog.Logger
	hand handover

	mu    sync.Mutex
	room  Room
	mine  Word
	heard map[string]heard
	shut  string // why no job is taken in; "": jobs are

	others bool // while shut: other members take them
}

type heard struct {
	Word
	at time.Time
}

// New makes a keeper that has seen nothing yet; [Keeper.Run] runs it.
func New(cfg Config, log *slog.Logger) *Keeper {
	return &Keeper{cfg: cfg, log: log, others: true, heard: map[string]heard{}, mine: Word{Node: cfg.Node, Contact: -1}}
}

// Run watches until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		k.turn(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// turn looks once at everything.
func (k *Keeper) turn(ctx context.Context) {
	k.look(ctx)
	k.hear()
	k.decide()
	now := time.Now()
	others := k.Others()
	k.mu.Lock()
	mine := k.mine
	k.mu.Unlock()
	to := k.hand.heir(now, k.cfg.Leads(), &mine, others)
	if to == "" {
		return
	}
	k.log.Warn("this node is unfit to decide: handing the authority over", "to", to, "because", texts(mine.Ailments))
	transfer, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := k.cfg.HandOver(transfer, to); err != nil && k.cfg.Leads() {
		k.log.Warn("the authority is not handed over", "to", to, "error", err)
	}
}

// look finds out how this node is, and says it.
func (k *Keeper) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	w := k.cfg.Check(ctx)
	w.Node = k.cfg.Node
	room, err := k.cfg.Disk.Look()
	k.mu.Lock()
	if err != nil {
		w.Level = Out
		w.Ailments = append(w.Ailments, Ailment{DiskFails, fmt.Sprintf("%v: mend the disk", err)})
	} else {
		w.Level = room.level(k.mine.Level)
		w.Ailments = append(w.Ailments, k.cfg.Disk.ailments(w.Level, room)...)
		k.room = room
	}
	was := k.mine
	k.mine = w
	k.mu.Unlock()
	if texts(was.Ailments) != texts(w.Ailments) && was.Level != w.Level {
		k.log.Warn("room on the disk has changed", "level", w.Level.String(), "free_bytes", room.Free, "refuse_below", room.Refuse, "stop_below", room.Stop)
	}
	k.cfg.Say(w)
}

// ailments are what is said of a level. The figures stand in the metrics: a text
// that changes each second would fill the history.
func (d Disk) ailments(l Level, r Room) []Ailment {
	switch l {
	case Low:
		return []Ailment{{DiskLow, fmt.Sprintf("less than %s is free where the data lies: this node takes no jobs in until there is more; free space, or run 'yardmaster node release-ballast --data-dir %s' there", inUnits(r.Refuse), d.Dir)}}
	case Out:
		return []Ailment{{DiskOut, fmt.Sprintf("less than %s is free where the data lies: this node takes no jobs in and decides nothing new; free space, or run 'yardmaster node release-ballast --data-dir %s' there", inUnits(r.Stop), d.Dir)}}
	}
	return nil
}

// hear asks the other members at once; who does not answer keeps his last word
// until it is stale.
func (k *Keeper) hear() {
	var asking sync.WaitGroup
	for _, member := range k.cfg.Members() {
		if member == k.cfg.Node {
			continue
		}
		asking.Go(func() {
			w, err := k.cfg.Ask(member)
			if err != nil || w.Node != member {
				return
			}
			k.mu.Lock()
			k.heard[member] = heard{w, time.Now()}
			k.mu.Unlock()
		})
	}
	asking.Wait()
}

// decide opens and closes the intake.
func (k *Keeper) decide() {
	why, others := k.reasonToClose()
	k.mu.Lock()
	changed := why != k.shut || others != k.others
	k.shut, k.others = why, others
	k.mu.Unlock()
	if !changed {
		return
	}
	if why != "" {
		k.log.Warn("no jobs are taken in", "because", why)
	} else {
		k.log.Info("jobs are taken in again")
	}
	k.cfg.Close(why, others)
}

func (k *Keeper) reasonToClose() (why string, others bool) {
	poor, members := k.Poor(Low), len(k.cfg.Members())
	switch {
	case len(poor) > 0 && members-len(poor) <= members/2:
		return "the disk of " + strings.Join(poor, ", ") + " has not enough room: a job needs a majority of disks", false
	case k.Mine().Level >= Low:
		return "the disk of this node, " + k.cfg.Node + ", has not enough room", true
	}
	return "", true
}

// Others are the words of the members that were heard lately.
func (k *Keeper) Others() []Word {
	k.mu.Lock()
	defer k.mu.Unlock()
	var words []Word
	for _, h := range k.heard {
		if time.Since(h.at) < StaleAfter {
			words = append(words, h.Word)
		}
	}
	slices.SortFunc(words, func(a, b Word) int { return strings.Compare(a.Node, b.Node) })
	return words
}

// Poor names the members, this node included, whose disk is at a level or worse.
func (k *Keeper) Poor(l Level) (poor []string) {
	for _, w := range append(k.Others(), k.Mine()) {
		if w.Level >= l {
			poor = append(poor, w.Node)
		}
	}
	slices.Sort(poor)
	return poor
}

// Mine is what this node says of itself.
func (k *Keeper) Mine() Word {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mine
}

// Room is the disk's, as it was when the keeper last looked.
func (k *Keeper) Room() Room {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.room
}

// Shut tells why no job is taken in; "" if jobs are.
func (k *Keeper) Shut() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shut
}

// Held tells why this node, as the authority, takes no jobs from the lanes any
// more; "" if it does. It lasts until the authority is with somebody who has room,
// or for as long as nobody has.
func (k *Keeper) Held() string {
	if k.Mine().Level < Out {
		return ""
	}
	return fmt.Sprintf("the disk of the authority's node, %s, has next to no room: no more jobs are taken from the lanes until there is; free space there, or release its ballast", k.cfg.Node)
}

// Reasons are what is wrong with this node and the others, in words.
func (k *Keeper) Reasons() (reasons []string) {
	for _, w := range append(k.Others(), k.Mine()) {
		for _, a := range w.Ailments {
			if a.Kind != JetStream && a.Kind != NoLane { // readiness tells of these by itself
				reasons = append(reasons, fmt.Sprintf("node %s: %s", w.Node, a.Text))
			}
		}
	}
	slices.Sort(reasons)
	return reasons
}

func texts(ailments []Ailment) string {
	var all []string
	for _, a := range ailments {
		all = append(all, a.Text)
	}
	return strings.Join(all, "; ")
}
