package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A list of workers has the workers of all nodes, and names a node that did not answer.
func TestDiagnoser_ListWorkers(t *testing.T) {
	l := ledger.New()
	apply := func(index uint64, commands ...ledger.Command) {
		for _, r := range l.Apply(ledger.Stamp{Index: index, At: testNow, Epoch: l.Authority().Epoch}, commands) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	apply(1, &ledger.Lead{Owner: "n1", Until: testNow.Add(time.Hour)})
	apply(2, &ledger.Bootstrap{Secret: []byte("s"), Lanes: []string{"L0"}})
	ingest, place := &ledger.Ingest{Identity: "L0", To: 3, CreateQueues: true}, new(ledger.Place)
	for i, at := range []struct{ node, channel string }{{"n1", "overhop/w1"}, {"n1", "rrq/py/7000"}, {"n3", "overhop/w3"}} {
		id := job.ID{byte(i + 1)}
		ingest.Jobs = append(ingest.Jobs, job.Job{ID: id, Queue: "mail", Function: "send", Position: job.Position{Seq: uint64(i + 1)}, Accepted: testNow})
		place.Placements = append(place.Placements, ledger.Placement{Job: id, N: 1, Node: at.node, Incarnation: 1, Channel: at.channel})
	}
	apply(3, ingest, place)

	nodes := map[string]*Diagnoser{}
	for _, name := range []string{"n1", "n2"} {
		nodes[name] = New(Config{
			Node: name, View: func(read func(*ledger.Ledger)) { read(l) }, Members: func() []string { return []string{"n3", "n1", "n2"} },
			Peers: peersOf(nodes), Workers: workersOfNode{name},
			Pools: func() []api.Pool {
				if name != "n1" {
					return nil
				}
				return []api.Pool{{Runner: "py", Members: []api.PoolProcess{{Worker: "py/7000", Slots: 2, InFlight: 1}, {Reason: "exit 1"}}}}
			},
		})
	}
	list, err := nodes["n1"].ListWorkers(t.Context(), &api.WorkerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	for _, n := range list.Nodes {
		got += fmt.Sprintf("%s %q %d:", n.Node, n.Error, n.Running)
		for _, w := range n.Workers {
			got += fmt.Sprintf(" %s %q %s", w.Kind, w.Name, w.Worker)
			for _, j := range w.Jobs {
				got += fmt.Sprintf(" [%s %s %d %t %d]", j.JID[:8], j.Function, j.Attempt, j.Started.Equal(testNow), *orZero(j.Percent))
			}
		}
		got += "\n"
	}
	const want = `n1 "" 2: worker "mailer on n1" overhop/w1 [mail:010 send 1 true 40] runner "py" rrq/py/7000 [mail:020 send 1 true 0] runner "py" ` + `
n2 "" 0: worker "mailer on n2" overhop/w1
n3 "the node is silent" 1:
`
	if got != want {
		t.Errorf("listed\n%s\nwant\n%s", got, want)
	}
	if list, err := nodes["n1"].ListWorkers(t.Context(), &api.WorkerRequest{Node: "n2"}); err != nil || len(list.Nodes) != 1 {
		t.Errorf("of one node: %+v, %v", list, err)
	}
	if _, err := nodes["n1"].ListWorkers(t.Context(), &api.WorkerRequest{Node: "n9"}); err == nil {
		t.Error("workers of a node that is no member are listed")
	}
}

// A list of many workers with long names on many members fits in a message, and has the
// number of the workers that it leaves out.
func TestDiagnoser_ListWorkers_Many(t *testing.T) {
	l := ledger.New()
	nodes, members := map[string]*Diagnoser{}, []string{}
	for i := range 9 {
		name := fmt.Sprint("n", i)
		members = append(members, name)
		nodes[name] = New(Config{
			Node: name, View: func(read func(*ledger.Ledger)) { read(l) }, Members: func() []string { return members },
			Peers: peersOf(nodes), Workers: busyWorkers{}, Pools: func() []api.Pool { return nil },
		})
	}
	list, err := nodes["n0"].ListWorkers(t.Context(), &api.WorkerRequest{})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list)
	if most := embedded.MaxMessage - 4<<10; err != nil || len(text) > most {
		t.Errorf("%d bytes, at most %d fit in a message; %v", len(text), most, err)
	}
	for _, n := range list.Nodes {
		if len(n.Workers) == 0 || len(n.Workers)+n.More != 100 || len(n.Workers[0].Jobs) == 0 {
			t.Errorf("%s: %d listed and %d more of 100 workers", n.Node, len(n.Workers), n.More)
		}
	}
}

// busyWorkers is an edge with 100 workers of ten queues, which run ten jobs each.
type busyWorkers struct{ workersOfNode }

func (busyWorkers) Workers(*api.WorkerRequest, int) (workers []api.Worker, more int) {
	for i := range 100 {
		w := api.Worker{Kind: "worker", Name: strings.Repeat("n", 128), Worker: fmt.Sprint("overhop/w", i), Running: 10}
		for range 10 {
			w.Queues = append(w.Queues, api.WorkerQueue{Queue: strings.Repeat("q", job.MaxQueueLen)})
			w.Jobs = append(w.Jobs, api.WorkerJob{JID: strings.Repeat("q", job.MaxQueueLen), Function: strings.Repeat("f", job.MaxFunctionLen), Started: testNow})
		}
		workers = append(workers, w)
	}
	return workers, 0
}

func orZero(n *int64) *int64 {
	if n == nil {
		return new(int64)
	}
	return n
}

// peersOf passes requests to diagnosers of the same process, by node.
type peersOf map[string]*Diagnoser

func (p peersOf) Request(ctx context.Context, node, verb string, payload []byte) ([]byte, error) {
	peer := p[node]
	if peer == nil {
		return nil, errors.New("the node is silent")
	}
	return peer.PeerHandlers()[verb](ctx, payload)
}

func (p peersOf) RequestJSON(ctx context.Context, node, verb string, request, reply any) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	answer, err := p.Request(ctx, node, verb, text)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, reply)
}

// workersOfNode is an edge with one worker, which runs the first job of the test.
type workersOfNode struct{ node string }

func (w workersOfNode) Subscribers(string) api.Subscribers { return api.Subscribers{} }

func (w workersOfNode) Workers(*api.WorkerRequest, int) ([]api.Worker, int) {
	return []api.Worker{{Kind: "worker", Name: "mailer on " + w.node, Worker: "overhop/w1"}}, 0
}

func (w workersOfNode) Running(id job.ID, _ uint32) (job.Progress, bool) {
	return job.Progress{Percent: new(int64(40))}, id == job.ID{1}
}
