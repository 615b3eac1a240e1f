package membership

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"yardmaster/ledger"
)

// How a change goes on.
const (
	busyEvery  = 300 * time.Millisecond
	levelEvery = 5 * time.Second
	askTime    = time.Second            // a node's word
	stepTime   = 10 * time.Second       // one step
	caughtUp   = 64                     // entries that a newcomer may lack when it gets its vote
	routeTime  = 30 * time.Second       // a newcomer that has no route by then is not let in
	finishTime = time.Minute            // a leaving member's jobs may finish
	awayFor    = 5 * time.Second        // without a route a leaving member is taken for dead
	lostTime   = 10 * time.Minute       // other copies may take to be current before a dead member's place is given away
	askAgain   = 10 * time.Second       // to move what lies on a leaving member
	lookFor    = 700 * time.Millisecond // at copies that are behind
	lookPause  = 50 * time.Millisecond
	levelFor   = 10 * time.Second // a copy that was current counts so long
)

// Keeper brings a yard in step with its roll. It lasts as long as the node; it
// acts while [Keeper.Run] runs, in a tenure.
type Keeper struct {
	self string // this node's seat
	name string // the yard, as people call it
	yard Yard
	log  *slog.Logger

	mu      sync.Mutex
	step    string // what the change under way waits for
	outcome string // why the last one came to nothing
	skew    []string
	level   map[string]time.Time // when copies were last seen current, by stream and seat

	patience time.Duration // lookFor
	away     time.Duration // awayFor

	change  uint64    // revision of the roll that the fields below are about
	began   time.Time // seen first
	evacued time.Time // asked last
	routed  time.Time // who leaves had a route last, or the change began
}

// New makes a keeper for the node of this seat.
func New(self, name string, yard Yard, log *slog.Logger) *Keeper {
	return &Keeper{self: self, name: name, yard: yard, log: log, patience: lookFor, away: awayFor, level: make(map[string]time.Time)}
}

// Run keeps the yard in step until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	defer k.say("", nil)
	for ctx.Err() == nil {
		pause := busyEvery
		turning, cancel := context.WithTimeout(ctx, stepTime)
		busy, err := k.turn(turning)
		cancel()
		if err != nil && ctx.Err() == nil {
			k.log.Debug("change of members waits", "error", err)
		}
		if !busy && err == nil {
			pause = levelEvery
		}
		k.rest(ctx, pause)
	}
}

// rest waits, and less long once a change has begun.
func (k *Keeper) rest(ctx context.Context, d time.Duration) {
	revision := k.yard.Roll().Revision
	for until := time.Now().Add(d); time.Now().Before(until); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(busyEvery, time.Until(until))):
		}
		if k.yard.Roll().Revision != revision {
			return
		}
	}
}

// turn does the next step; busy tells that a change is under way.
func (k *Keeper) turn(ctx context.Context) (busy bool, err error) {
	roll := k.yard.Roll()
	if roll.Revision == 0 {
		return true, k.yard.Do(ctx, &ledger.SetMembers{Members: k.yard.Founders()})
	}
	if roll.Revision != k.change {
		k.change, k.began, k.evacued = roll.Revision, time.Now(), time.Time{}
		k.routed = k.began
	}
	joining, leaving := roll.Changing()
	step := ""
	switch {
	case joining != nil:
		step, err = k.join(ctx, joining)
	case leaving != nil:
		step, err = k.leave(ctx, leaving)
	default:
		skew, err := k.even(ctx, roll)
		k.say("", skew)
		return false, err
	}
	if err != nil && step == "" {
		step = err.Error()
	}
	k.say(step, nil)
	return true, err
}

// say keeps what the change waits for, and logs it when it is another thing.
func (k *Keeper) say(step string, skew []string) {
	k.mu.Lock()
	before := k.step
	k.step, k.skew = step, skew
	k.mu.Unlock()
	if kind := func(s string) string { head, _, _ := strings.Cut(s, ":"); return head }; step != "" && kind(step) != kind(before) {
		k.log.Info("change of members", "step", step)
	}
}

// Reasons are why the yard is not in step with its roll.
func (k *Keeper) Reasons() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.skew)
}

// join brings a newcomer as far as it comes now.
func (k *Keeper) join(ctx context.Context, j *ledger.Member) (string, error) {
	id := j.ID()
	if !slices.Contains(k.yard.Routed(), id) {
		if time.Since(k.began) > routeTime && !k.seated(id) {
			return "", k.giveUp(ctx, fmt.Sprintf("%s was not let in: it has opened no NATS route within %s; does it run, with the same cluster.secret, and does it reach the members' route addresses?", j.Node, routeTime))
		}
		return j.Node + " opens its NATS routes", nil
	}
	word, err := k.ask(ctx, j.Node)
	if err != nil || word.ID != id {
		return j.Node + " starts", nil
	}
	meta, err := k.meta(ctx)
	if err != nil {
		return "JetStream elects a leader", nil
	}
	if i := slices.IndexFunc(meta, func(c Copy) bool { return c.ID == id }); i < 0 || !meta[i].well() {
		return j.Node + " catches up with JetStream", nil
	}
	if err := k.yard.Admit(ctx, id, false); err != nil {
		return "", err
	}
	if last := k.yard.Last(); word.Applied+caughtUp < last {
		return fmt.Sprintf("%s catches up with the log: %d of %d entries", j.Node, word.Applied, last), nil
	}
	// From here on its directory counts: it says so on disk before it votes.
	if err := k.yard.Vouch(ctx, j.Node, id); err != nil {
		return "", err
	}
	if err := k.yard.Admit(ctx, id, true); err != nil {
		return "", err
	}
	return j.Node + " has a vote", k.yard.Do(ctx, &ledger.StepMember{ID: id, From: ledger.Joining, To: ledger.Present})
}

// giveUp takes a change back that lets somebody in.
func (k *Keeper) giveUp(ctx context.Context, why string) error {
	k.log.Warn("change of members is taken back", "reason", why)
	k.mu.Lock()
	k.outcome = why
	k.mu.Unlock()
	return k.yard.Do(ctx, &ledger.ChangeMembers{Cancel: true})
}

// leave brings a member as far out as it goes now.
func (k *Keeper) leave(ctx context.Context, l *ledger.Member) (string, error) {
	id := l.ID()
	if id == k.self {
		return l.Node + " hands the authority on", k.yard.HandOver(ctx, "")
	}
	alive := slices.Contains(k.yard.Routed(), id)
	switch {
	case alive:
		k.routed = time.Now()
		if word, err := k.ask(ctx, l.Node); err == nil && word.ID == id && word.Running > 0 && time.Since(k.began) < finishTime {
			return fmt.Sprintf("%s finishes its jobs: %d", l.Node, word.Running), nil
		}
	case time.Since(k.routed) < k.away: // a route that is made anew takes a moment
		return fmt.Sprintf("%s has no route: without one for %s it is taken out as it is", l.Node, k.away), nil
	}
	meta, err := k.meta(ctx)
	if err != nil {
		return "JetStream elects a leader", nil
	}
	seated := slices.ContainsFunc(meta, func(c Copy) bool { return c.ID == id })
	if seated {
		free := k.moved
		if !alive {
			free = k.spared
		}
		if left, err := free(ctx, id); left != "" || err != nil {
			return left, err
		}
	}
	if err := k.yard.Unseat(ctx, id); err != nil {
		return "", err
	}
	if seated {
		return l.Node + " is taken out of JetStream", k.yard.Expel(ctx, id)
	}
	return k.dismiss(ctx, l, alive)
}

// dismiss has the node of a member end that neither votes nor is in JetStream,
// and strikes it off the roll once all streams are whole. The node goes first: a
// server that was taken out may answer questions that are for JetStream's leader.
func (k *Keeper) dismiss(ctx context.Context, l *ledger.Member, alive bool) (string, error) {
	id := l.ID()
	var untold error
	if alive { // else it hears of it from the others when it starts again
		untold = k.yard.Dismiss(ctx, l.Node, id)
	}
	if left, err := k.whole(ctx, id); left != "" || err != nil {
		return left, err
	}
	if untold != nil {
		k.log.Info("who leaves was not told", "member", l.Node, "error", untold)
	}
	return l.Node + " is out", k.yard.Do(ctx, &ledger.StepMember{ID: id, From: ledger.Leaving, To: ledger.Out})
}

// ask hears a node's word within askTime.
func (k *Keeper) ask(ctx context.Context, node string) (Word, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return k.yard.Ask(ctx, node)
}

// words asks all nodes on the roll at once; who does not answer is left out.
func (k *Keeper) words(ctx context.Context, roll ledger.Roll) map[string]Word {
	var mu sync.Mutex
	var asking sync.WaitGroup
	words := map[string]Word{}
	for i := range roll.Members {
		node := roll.Members[i].Node
		asking.Go(func() {
			if w, err := k.ask(ctx, node); err == nil {
				mu.Lock()
				words[w.ID] = w
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	return words
}

// meta is JetStream's group as its leader has it.
func (k *Keeper) meta(ctx context.Context) ([]Copy, error) {
	for _, w := range k.words(ctx, k.yard.Roll()) {
		if w.Led {
			return w.Meta, nil
		}
	}
	return nil, fmt.Errorf("nobody says that it leads JetStream")
}

func (k *Keeper) seated(id string) bool {
	return slices.ContainsFunc(k.yard.Servers(), func(s Server) bool { return s.ID == id })
}

// even brings Raft and JetStream in step with a roll on which nothing changes,
// and tells what is not.
func (k *Keeper) even(ctx context.Context, roll ledger.Roll) (skew []string, err error) {
	on := func(id string) bool {
		return slices.ContainsFunc(roll.Members, func(m ledger.Member) bool { return m.ID() == id })
	}
	say := func(format string, args ...any) {
		skew = append(skew, "members are out of step: "+fmt.Sprintf(format, args...)+": this mends itself; if it stays, see docs/membership.md")
	}
	servers := k.yard.Servers()
	for _, s := range servers {
		if !on(s.ID) {
			say("%s votes and is no member", s.ID)
			err = k.yard.Unseat(ctx, s.ID)
		}
	}
	for i := range roll.Members {
		id := roll.Members[i].ID()
		if !slices.ContainsFunc(servers, func(s Server) bool { return s.ID == id && s.Voter }) {
			say("%s is a member without a vote", id)
			err = k.yard.Admit(ctx, id, true)
		}
	}
	meta, unknown := k.meta(ctx)
	if unknown != nil {
		return skew, err // readiness says what is wrong with JetStream
	}
	for i := range meta {
		if id := meta[i].ID; !on(id) {
			say("JetStream counts on %s, which is no member", id)
			err = k.yard.Expel(ctx, id)
		}
	}
	for i := range roll.Members {
		if id := roll.Members[i].ID(); !slices.ContainsFunc(meta, func(c Copy) bool { return c.ID == id }) {
			say("JetStream does not know member %s", id) // it joins by its route
		}
	}
	return skew, err
}
