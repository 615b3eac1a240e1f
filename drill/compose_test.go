package drill

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The compose drill breaks the yard of deploy/compose. It runs only where
// composeEnv names the program, docker-compose or "docker compose".
const (
	composeEnv     = "YARD_COMPOSE"
	composeSeedEnv = "YARD_TEST_SEED"
	composeProject = "yard-drill"
	composeJobs    = 6000 // of each kind
	// coldStart is what three nodes may take from the start of the first
	// container until all of them are ready.
	coldStart = 15 * time.Second
)

// composed is a yard of containers. A node's Process is `docker wait`, which
// lasts as long as its container.
type composed struct {
	*Yard
	t       *testing.T
	ctx     context.Context
	program []string
	id      map[string]string // of containers, by service
}

// TestCompose_KillEachNode kills the container of each node in turn while jobs
// are enqueued, starts it again, and holds what was acknowledged against what
// the yard says and what workers and runners witnessed. Then it takes the
// quorum away and gives it back, and takes all down and up again.
func TestCompose_KillEachNode(t *testing.T) {
	c := composeUp(t)
	seed := composeSeed(t)
	dice := rand.New(rand.NewPCG(seed, 0))

	loads := []*Load{
		{Queue: "drill-workers", Function: "echo", Jobs: composeJobs, Parallel: 4, Pace: 50 * time.Millisecond},
		{Queue: "drill-runners", Function: "demo#echo", Jobs: composeJobs, Parallel: 4, Pace: 50 * time.Millisecond},
	}
	for _, l := range loads {
		l.Prefix = strconv.FormatUint(seed, 36) + "-" + l.Queue
	}
	var published sync.WaitGroup
	published.Go(func() { publish(t, c.ctx, c.Yard, loads...) })
	for i, n := range dice.Perm(len(c.Nodes)) {
		// Under load: the kill comes when so many jobs are acknowledged.
		at := composeJobs*(3*i+1)/10 + dice.IntN(composeJobs/10)
		c.must(until(c.ctx, "jobs are acknowledged", func() error {
			if got := loads[0].Acked(); got < at {
				return fmt.Errorf("%d of %d", got, at)
			}
			return nil
		}))
		c.killAndHeal(c.Nodes[n], loads[0])
	}
	published.Wait()
	c.must(c.Await(c.ctx, loads...))
	c.judge("after the kills", loads)

	c.loseQuorum(c.Nodes[dice.IntN(len(c.Nodes))])
	c.downAndUp()
	c.judge("after down and up", loads)
}

func composeSeed(t *testing.T) uint64 {
	seed := rand.Uint64N(1 << 32)
	if given := os.Getenv(composeSeedEnv); given != "" {
		n, err := strconv.ParseUint(given, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", composeSeedEnv, err)
		}
		seed = n
	}
	t.Logf("seed %d; the same again: make compose-drill SEED=%d", seed, seed)
	return seed
}

// composeUp starts the containers under a project of their own, and removes
// them and their volumes in the end.
func composeUp(t *testing.T) *composed {
	program := strings.Fields(os.Getenv(composeEnv))
	if len(program) == 0 {
		t.Skip("needs a Docker engine and the image: run make compose-drill")
	}
	dir, err := os.MkdirTemp("", "yardmaster-compose-")
	if err != nil {
		t.Fatal(err)
	}
	// The containers' user is not ours, and has to write there.
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	c := &composed{Yard: &Yard{Dir: dir}, t: t, ctx: ctx, program: program, id: map[string]string{}}
	t.Setenv("YARD_DRILL_DIR", dir)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the containers say:\n%s", tail(c.say(context.Background(), c.compose("logs", "--no-color", "--tail", "30")...), 120))
		}
		t.Log(tail(c.say(context.Background(), c.compose("down", "-v", "--remove-orphans")...), 3))
		cancel()
		_ = os.RemoveAll(dir) // a witness that stays harms nobody
	})
	took := c.up("n1", "n2", "n3", "worker-1", "worker-2")
	t.Logf("cold start: three nodes are ready %s after the first container's start", took.Round(time.Millisecond))
	if took > coldStart {
		t.Errorf("cold start took %s; must be %s at most", took.Round(time.Millisecond), coldStart)
	}
	for _, n := range c.Nodes {
		c.health(n, "healthy")
	}
	return c
}

// compose is the command line for the yard of the drill.
func (c *composed) compose(args ...string) []string {
	dir := filepath.Join("..", "deploy", "compose")
	line := append(c.program[:len(c.program):len(c.program)], "-p", composeProject, "-f", filepath.Join(dir, "compose.yml"), "-f", filepath.Join(dir, "drill.yml"))
	return append(line, args...)
}

// run runs a command, whose words come with the error.
func (c *composed) run(line ...string) error {
	if said, err := exec.CommandContext(c.ctx, line[0], line[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, tail(string(said), 10))
	}
	return nil
}

// say is what a command says, or why it says nothing.
func (c *composed) say(ctx context.Context, line ...string) string {
	said, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s: %v: %s", strings.Join(line, " "), err, said)
	}
	return string(bytes.TrimSpace(said))
}

func (c *composed) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// up makes and starts services, and returns when all nodes say that they are
// ready: how long after the start of the first of them. They are asked from the
// beginning, because the program itself takes its time to end.
func (c *composed) up(services ...string) time.Duration {
	c.t.Helper()
	var ready time.Time
	var err error
	var watch sync.WaitGroup
	watch.Go(func() {
		err = until(c.ctx, "all nodes are ready", func() error {
			for _, name := range composeNodes {
				n := Node{Name: name, NATS: composeNATS(name)}
				if s, err := n.Status(c.ctx); err != nil || !s.Readiness.Ready {
					return fmt.Errorf("%s: %v %v", name, s.Readiness.Reasons, err)
				}
			}
			ready = time.Now()
			return nil
		})
	})
	c.must(c.run(c.compose(append([]string{"up", "-d"}, services...)...)...))
	watch.Wait()
	c.must(err)
	c.find()
	return ready.Sub(c.stamp("StartedAt", c.Nodes))
}

// composeNodes are the services that are nodes.
var composeNodes = []string{"n1", "n2", "n3"}

// composeNATS is where compose.yml publishes a node's NATS port.
func composeNATS(name string) string { return "nats://127.0.0.1:422" + name[1:] }

// find looks up the containers, which are others after every up.
func (c *composed) find() {
	c.t.Helper()
	c.Nodes = nil
	for _, name := range composeNodes {
		c.id[name] = c.say(c.ctx, c.compose("ps", "-q", name)...)
		n := &Node{Name: name, NATS: composeNATS(name)}
		n.Process = &Process{name: name, log: filepath.Join(c.Dir, name+".wait"), args: []string{"docker", "wait", c.id[name]}}
		c.must(n.Start())
		c.Nodes = append(c.Nodes, n)
	}
}

// stamp is the earliest of the nodes' times that the engine calls so.
func (c *composed) stamp(name string, nodes []*Node) (first time.Time) {
	c.t.Helper()
	for _, n := range nodes {
		at, err := time.Parse(time.RFC3339Nano, c.say(c.ctx, "docker", "inspect", "-f", "{{.State."+name+"}}", c.id[n.Name]))
		c.must(err)
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// health waits until the engine finds a node's container as wanted, and tells
// how long that took.
func (c *composed) health(n *Node, want string) time.Duration {
	c.t.Helper()
	began := time.Now()
	c.must(until(c.ctx, n.Name+" is "+want, func() error {
		if is := c.say(c.ctx, "docker", "inspect", "-f", "{{.State.Status}} {{.State.Health.Status}}", c.id[n.Name]); is != "running "+want {
			return fmt.Errorf("it is %s", is)
		}
		return nil
	}))
	return time.Since(began)
}

// kill ends containers and returns when they have ended. What counts as the time
// of the kill is when the engine saw the first of them end: the command to it
// takes its time.
func (c *composed) kill(nodes ...*Node) {
	c.t.Helper()
	line := []string{"docker", "kill"}
	for _, n := range nodes {
		line = append(line, c.id[n.Name])
	}
	c.must(c.run(line...))
	for _, n := range nodes {
		c.must(n.Wait(c.ctx))
	}
	c.kills = append(c.kills, Clock()-int64(time.Since(c.stamp("FinishedAt", nodes))))
}

// start starts a container that has ended.
func (c *composed) start(n *Node) {
	c.t.Helper()
	c.must(c.run("docker", "start", c.id[n.Name]))
	c.must(n.Start())
}

func (c *composed) killAndHeal(n *Node, l *Load) {
	c.t.Helper()
	role := "no authority"
	if a, err := c.Authority(c.ctx); err == nil && a == n {
		role = "the authority"
	}
	before := l.Acked()
	c.kill(n)
	// The others go on: jobs are acknowledged, and they count as healthy.
	c.must(until(c.ctx, "the others take jobs", func() error {
		if got := l.Acked() - before; got < composeJobs/20 {
			return fmt.Errorf("%d since the kill", got)
		}
		return nil
	}))
	for _, other := range c.Up() {
		c.health(other, "healthy")
	}
	meanwhile := l.Acked() - before
	c.start(n)
	starting := c.health(n, "starting")
	healthy := c.health(n, "healthy")
	c.must(c.WaitReady(c.ctx))
	if l.Acked() >= l.Jobs {
		c.t.Errorf("%s was killed and healed, and the load was over before: nothing is shown", n.Name)
	}
	c.t.Logf("killed %s (%s) at %d acknowledged jobs; %d more while it was away; starting after %s, healthy %s later",
		n.Name, role, before, meanwhile, starting.Round(time.Millisecond), healthy.Round(time.Millisecond))
}

// loseQuorum leaves one node alone, which has to say that it is not ready, and
// brings the others back.
func (c *composed) loseQuorum(left *Node) {
	c.t.Helper()
	var others []*Node
	for _, n := range c.Nodes {
		if n != left {
			others = append(others, n)
		}
	}
	c.kill(others...)
	sick := c.health(left, "unhealthy")
	for _, n := range others {
		c.start(n)
	}
	var well time.Duration
	for _, n := range c.Nodes {
		well += c.health(n, "healthy")
	}
	c.must(c.WaitReady(c.ctx))
	c.t.Logf("%s alone is unhealthy after %s; all are healthy %s after the others' start", left.Name, sick.Round(time.Millisecond), well.Round(time.Millisecond))
}

// downAndUp removes the containers and makes new ones on the same volumes.
func (c *composed) downAndUp() {
	c.t.Helper()
	began := time.Now()
	c.must(c.run(c.compose("down")...))
	for _, n := range c.Nodes {
		c.must(n.Wait(c.ctx))
	}
	down := time.Since(began)
	took := c.up(composeNodes...)
	c.t.Logf("down took %s; ready again %s after the first container's start", down.Round(time.Millisecond), took.Round(time.Millisecond))
}

func (c *composed) judge(when string, loads []*Load) {
	c.t.Helper()
	v, err := c.Judge(c.ctx, loads...)
	c.must(err)
	c.t.Logf("%s: %s", when, &v)
	for _, flaw := range v.Flaws() {
		c.t.Errorf("%s: %s", when, flaw)
	}
	if v.Failed > 0 {
		c.t.Errorf("%s: %d jobs failed", when, v.Failed)
	}
}
