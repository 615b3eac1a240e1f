package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// minCostRounds is the least number of rounds of the cost of the index, which is about as large as
// what the speed of the machine varies by between two rounds.
const minCostRounds = 5

// indexSuite measures clusters whose nodes have their index, in turn with the same clusters without.
func (b *bench) indexSuite(nodes int) suite {
	var with, without *benchCluster
	name := fmt.Sprintf("index%d", nodes)
	rounds := max(b.Rounds, minCostRounds)
	compare := func(figure, note string, measure func(t *task, cl *benchCluster) round) []experiment {
		off, on := alternating(
			func(t *task) round { return without.indexed(t, false, measure) },
			func(t *task) round { return with.indexed(t, true, measure) },
		)
		figure = name + "." + figure
		return []experiment{
			{name: figure + ".off", unit: jobsPerSecond, run: off, rounds: rounds, note: note + ", without the index"},
			{name: figure, unit: jobsPerSecond, run: on, rounds: rounds, target: target{floor: figure + ".off", ratio: 0.95}, note: note},
		}
	}
	s := suite{name: name, interleaved: true, open: func(t *task) {
		with = startOnce(t, "with", b.startCluster(procs.Options{Nodes: nodes}))()
		without = startOnce(t, "without", b.startCluster(procs.Options{Nodes: nodes}, blockIndex))()
	}}
	s.names = append(s.names, compare("accept", "acceptance of jobs that wait", func(t *task, cl *benchCluster) round {
		return cl.backlog(t, cl.sampleSize(queuePlain), cl.newLoad(plain(queuePlain)), b.async).accepted
	})...)
	s.names = append(s.names, compare("jobs", "from the first enqueue to the last end", func(t *task, cl *benchCluster) round {
		return cl.overhop(t, queuePlain, plain(queuePlain), false, b.async)
	})...)
	return s
}

// blockIndex makes a node run without its index, as one does whose disk fails there: a file is where
// its directory should be. The node tries to open it again every ten seconds.
func blockIndex(n *procs.Node) {
	must.Do(os.MkdirAll(n.DataDir, 0o700))
	must.Do(os.WriteFile(filepath.Join(n.DataDir, "index"), nil, 0o600))
}

// indexed measures a round, after which every node must have the jobs in its index, or must have no index.
func (c *benchCluster) indexed(t *task, want bool, measure func(t *task, cl *benchCluster) round) round {
	r := measure(t, c)
	for _, n := range c.Nodes {
		m := must.Get(metricsOf(t, n))
		if usable := m["yard_index_usable"] == 1; usable != want {
			must.Do(fmt.Errorf("the index of %s is usable: %t, want %t", n.Name, usable, want))
		}
		if want {
			c.awaitIndexed(t, n, must.Get(n.Status(t)).Backlog.Delivered)
		}
	}
	return r
}

// awaitIndexed waits until a node's index has at least this number of ended jobs.
func (c *benchCluster) awaitIndexed(t *task, n *procs.Node, ended uint64) {
	t.await("the index of "+n.Name+" has all jobs", func() error {
		found, err := find(t, n, "", 1)
		if err == nil && uint64(found.Index.Ended) < ended {
			err = fmt.Errorf("it has %d of %d", found.Index.Ended, ended)
		}
		return err
	})
}

// find returns the first jobs that a query finds in a node's index.
func find(ctx context.Context, n *procs.Node, query string, limit int) (*api.FoundJobs, error) {
	answer, err := get(ctx, n, "/v1/jobs/find?"+url.Values{"q": {query}, "limit": {strconv.Itoa(limit)}}.Encode())
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("find %q on %s: %s: %s", query, n.Name, answer.Status, body)
	}
	found := new(api.FoundJobs)
	return found, json.Unmarshal(body, found)
}
