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

	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// The parameters of the drill of deploy/compose. It runs only if composeEnv names the
// program: docker-compose or "docker compose".
const (
	composeEnv     = "YARD_COMPOSE"
	composeSeedEnv = "YARD_TEST_SEED"
	composeProject = "yard-drill"
	composeJobs    = 6000 // of each kind
	// coldStart is the limit for the time from the start of the first container
	// until all nodes are ready.
	coldStart = 15 * time.Second
)

// composeCluster is a cluster of containers. The Process of a node is `docker wait`,
// which exits with its container.
type composeCluster struct {
	*Cluster
	t       *testing.T
	ctx     context.Context
	program []string
	id      map[string]string // container ids by service
}

// TestCompose_KillEachNode kills the container of each node in turn while jobs are
// enqueued, restarts it, and compares the acknowledged jobs with the state of the
// cluster and with the witness files. Then it takes the quorum away and gives it back,
// and removes and recreates all containers.
func TestCompose_KillEachNode(t *testing.T) {
	c := composeUp(t)
	seed := composeSeed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))

	loads := []*Load{
		{Queue: "drill-workers", Function: "echo", Jobs: composeJobs, Parallel: 4, Pace: 50 * time.Millisecond},
		{Queue: "drill-runners", Function: "demo#echo", Jobs: composeJobs, Parallel: 4, Pace: 50 * time.Millisecond},
	}
	for _, l := range loads {
		l.Prefix = strconv.FormatUint(seed, 36) + "-" + l.Queue
	}
	var published sync.WaitGroup
	published.Go(func() { publish(t, c.ctx, c.Cluster, loads...) })
	for i, n := range rnd.Perm(len(c.Nodes)) {
		// Kill under load, when this number of jobs is acknowledged.
		at := composeJobs*(3*i+1)/10 + rnd.IntN(composeJobs/10)
		c.mustRun(until(c.ctx, "jobs are acknowledged", func() error {
			if got := loads[0].Acked(); got < at {
				return fmt.Errorf("%d of %d", got, at)
			}
			return nil
		}))
		c.killAndHeal(c.Nodes[n], loads[0])
	}
	published.Wait()
	c.mustRun(c.Await(c.ctx, loads...))
	c.judge("after the kills", loads)

	c.breakQuorum(c.Nodes[rnd.IntN(len(c.Nodes))])
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
	t.Logf("seed %d; to repeat: make compose-drill SEED=%d", seed, seed)
	return seed
}

// composeUp starts the containers in a new project, and removes them and their volumes
// at the end of the test.
func composeUp(t *testing.T) *composeCluster {
	program := strings.Fields(os.Getenv(composeEnv))
	if len(program) == 0 {
		t.Skip("needs a Docker engine and the image: run make compose-drill")
	}
	dir, err := os.MkdirTemp("", "yardmaster-compose-")
	if err != nil {
		t.Fatal(err)
	}
	// The containers run as another user, which must be able to write here.
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	c := &composeCluster{Cluster: &Cluster{Dir: dir}, t: t, ctx: ctx, program: program, id: map[string]string{}}
	t.Setenv("YARD_DRILL_DIR", dir)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the containers:\n%s", tail(c.logf(context.Background(), c.compose("logs", "--no-color", "--tail", "30")...), 120))
		}
		t.Log(tail(c.logf(context.Background(), c.compose("down", "-v", "--remove-orphans")...), 3))
		cancel()
		_ = os.RemoveAll(dir) // files left by another user do no harm
	})
	took := c.up("n1", "n2", "n3", "worker-1", "worker-2")
	t.Logf("cold start: three nodes are ready %s after the first container's start", took.Round(time.Millisecond))
	if took > coldStart {
		t.Errorf("cold start took %s, want at most %s", took.Round(time.Millisecond), coldStart)
	}
	for _, n := range c.Nodes {
		c.health(n, "healthy")
	}
	return c
}

// compose returns the command line for the drill's project.
func (c *composeCluster) compose(args ...string) []string {
	dir := filepath.Join("..", "..", "deploy", "compose")
	line := append(c.program[:len(c.program):len(c.program)], "-p", composeProject, "-f", filepath.Join(dir, "compose.yml"), "-f", filepath.Join(dir, "drill.yml"))
	return append(line, args...)
}

// run runs a command. The error includes its output.
func (c *composeCluster) run(line ...string) error {
	if output, err := exec.CommandContext(c.ctx, line[0], line[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, tail(string(output), 10))
	}
	return nil
}

// logf returns the output of a command, or its error.
func (c *composeCluster) logf(ctx context.Context, line ...string) string {
	output, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s: %v: %s", strings.Join(line, " "), err, output)
	}
	return string(bytes.TrimSpace(output))
}

func (c *composeCluster) mustRun(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// up creates and starts services, and returns how long after the start of the first
// node all nodes were ready. It polls the nodes in parallel with the command, which
// takes a while to exit.
func (c *composeCluster) up(services ...string) time.Duration {
	c.t.Helper()
	var ready time.Time
	var err error
	var watch sync.WaitGroup
	watch.Go(func() {
		err = until(c.ctx, "all nodes are ready", func() error {
			for _, name := range composeNodes {
				n := procs.Node{Name: name, NATS: composeNATS(name)}
				if s, err := n.Status(c.ctx); err != nil || !s.Readiness.Ready {
					return fmt.Errorf("%s: %v %v", name, s.Readiness.Reasons, err)
				}
			}
			ready = time.Now()
			return nil
		})
	})
	c.mustRun(c.run(c.compose(append([]string{"up", "-d"}, services...)...)...))
	watch.Wait()
	c.mustRun(err)
	c.find()
	return ready.Sub(c.stamp("StartedAt", c.Nodes))
}

// composeNodes are the services that run nodes.
var composeNodes = []string{"n1", "n2", "n3"}

// composeNATS returns the address of a node's published NATS port.
func composeNATS(name string) string { return "127.0.0.1:422" + name[1:] }

// find looks up the ids of the containers, which change with every up.
func (c *composeCluster) find() {
	c.t.Helper()
	c.Nodes = nil
	for _, name := range composeNodes {
		c.id[name] = c.logf(c.ctx, c.compose("ps", "-q", name)...)
		n := &Node{Node: &procs.Node{Name: name, NATS: composeNATS(name)}}
		n.Process = &procs.Process{Name: name, LogFile: filepath.Join(c.Dir, name+".wait"), Args: []string{"docker", "wait", c.id[name]}}
		c.mustRun(n.Start())
		c.Nodes = append(c.Nodes, n)
	}
}

// stamp returns the earliest of the nodes' timestamps of that name.
func (c *composeCluster) stamp(name string, nodes []*Node) (first time.Time) {
	c.t.Helper()
	for _, n := range nodes {
		at, err := time.Parse(time.RFC3339Nano, c.logf(c.ctx, "docker", "inspect", "-f", "{{.State."+name+"}}", c.id[n.Name]))
		c.mustRun(err)
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// health waits until the engine reports a node's container as wanted, and returns how
// long that took.
func (c *composeCluster) health(n *Node, want string) time.Duration {
	c.t.Helper()
	began := time.Now()
	c.mustRun(until(c.ctx, n.Name+" is "+want, func() error {
		if is := c.logf(c.ctx, "docker", "inspect", "-f", "{{.State.Status}} {{.State.Health.Status}}", c.id[n.Name]); is != "running "+want {
			return fmt.Errorf("the container is %s", is)
		}
		return nil
	}))
	return time.Since(began)
}

// kill kills containers and returns when they have exited. It records as time of the
// kill when the first of them exited, because the command takes a while.
func (c *composeCluster) kill(nodes ...*Node) {
	c.t.Helper()
	line := []string{"docker", "kill"}
	for _, n := range nodes {
		line = append(line, c.id[n.Name])
	}
	c.mustRun(c.run(line...))
	for _, n := range nodes {
		c.mustRun(n.Wait(c.ctx))
	}
	c.kills = append(c.kills, HostClock()-int64(time.Since(c.stamp("FinishedAt", nodes))))
}

// start restarts a container.
func (c *composeCluster) start(n *Node) {
	c.t.Helper()
	c.mustRun(c.run("docker", "start", c.id[n.Name]))
	c.mustRun(n.Start())
}

func (c *composeCluster) killAndHeal(n *Node, l *Load) {
	c.t.Helper()
	role := "no authority"
	if a, err := c.Authority(c.ctx); err == nil && a == n {
		role = "the authority"
	}
	before := l.Acked()
	c.kill(n)
	// The other nodes must acknowledge jobs and stay healthy.
	c.mustRun(until(c.ctx, "the other nodes accept jobs", func() error {
		if got := l.Acked() - before; got < composeJobs/20 {
			return fmt.Errorf("%d since the kill", got)
		}
		return nil
	}))
	for _, other := range c.Running() {
		c.health(other, "healthy")
	}
	meanwhile := l.Acked() - before
	c.start(n)
	starting := c.health(n, "starting")
	healthy := c.health(n, "healthy")
	c.mustRun(c.WaitReady(c.ctx))
	if l.Acked() >= l.Jobs {
		c.t.Errorf("the load ended before %s was killed and healed", n.Name)
	}
	c.t.Logf("killed %s (%s) at %d acknowledged jobs; %d more while it was away; starting after %s, healthy %s later",
		n.Name, role, before, meanwhile, starting.Round(time.Millisecond), healthy.Round(time.Millisecond))
}

// breakQuorum leaves one node running, which must report that it is not ready, and
// restarts the other nodes.
func (c *composeCluster) breakQuorum(left *Node) {
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
	c.mustRun(c.WaitReady(c.ctx))
	c.t.Logf("%s alone is unhealthy after %s; all are healthy %s after the others' start", left.Name, sick.Round(time.Millisecond), well.Round(time.Millisecond))
}

// downAndUp removes the containers and creates new ones with the same volumes.
func (c *composeCluster) downAndUp() {
	c.t.Helper()
	began := time.Now()
	c.mustRun(c.run(c.compose("down")...))
	for _, n := range c.Nodes {
		c.mustRun(n.Wait(c.ctx))
	}
	down := time.Since(began)
	took := c.up(composeNodes...)
	c.t.Logf("down took %s; ready again %s after the first container's start", down.Round(time.Millisecond), took.Round(time.Millisecond))
}

func (c *composeCluster) judge(when string, loads []*Load) {
	c.t.Helper()
	v, err := c.Judge(c.ctx, loads...)
	c.mustRun(err)
	c.t.Logf("%s: %s", when, &v)
	for _, flaw := range v.Flaws() {
		c.t.Errorf("%s: %s", when, flaw)
	}
	if v.Failed > 0 {
		c.t.Errorf("%s: %d jobs failed", when, v.Failed)
	}
}
