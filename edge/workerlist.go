package edge

import (
	"cmp"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

// maxWorkerQueues is the number of a worker's subscriptions that are listed.
const maxWorkerQueues = 10

// Workers returns the connected workers that match the request, without the jobs that they
// run, by name: at most limit. more is the number of further ones. A client without
// subscriptions and jobs, such as a producer, is not a worker.
func (s *Server) Workers(request *api.WorkerRequest, limit int) (workers []api.Worker, more int) {
	ds := s.deliveries
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for _, w := range ds.workers {
		if len(w.subs) == 0 && len(w.jobs) == 0 {
			continue
		}
		isNamed := request.Worker == "" || request.Worker == w.name() || request.Worker == w.id || request.Worker == channel(w.id)
		if isNamed && (request.Queue == "" || w.byQueue[request.Queue] != nil) {
			workers = append(workers, w.describe(request.Queue))
		}
	}
	slices.SortFunc(workers, func(a, b api.Worker) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Worker, b.Worker)) })
	if more = len(workers) - limit; more > 0 {
		return workers[:limit], more
	}
	return workers, 0
}

// SetDrained drains a connected worker, by its channel, or resumes it. A drained worker is
// sent no more jobs and finishes those that it runs. It keeps its connection, its
// subscriptions and its credits: the protocol's DRAIN would send it to another node, which
// would give it jobs. SetDrained returns the number of jobs that it runs, and false if no
// such worker is connected.
func (s *Server) SetDrained(worker string, drained bool) (running int, ok bool) {
	ds := s.deliveries
	ds.mu.Lock()
	defer ds.unlock()
	w := ds.workers[strings.TrimPrefix(worker, channel(""))]
	if w == nil {
		return 0, false
	}
	w.drained = drained
	w.offersChanged()
	return len(w.jobs), true
}

// name returns the name that the client gave in HELLO.
func (w *worker) name() string { return w.conn.session.Hello.Name }

// describe returns the worker as listed. Of its subscriptions, the one to the given queue
// comes first. deliveries.mu is held.
func (w *worker) describe(queue string) api.Worker {
	listed := api.Worker{
		Kind: "worker", Worker: channel(w.id), Name: w.name(), Client: w.conn.session.Hello.Client,
		Address: w.conn.netConn.RemoteAddr().String(), Connected: new(w.registered), Stalled: w.stallCount > 0,
		Leaving: w.draining || w.deliveries.draining, Drained: w.drained, Running: len(w.jobs),
	}
	for _, sub := range w.subs {
		listed.Queues = append(listed.Queues, api.WorkerQueue{Queue: sub.queue, Credits: sub.available()})
	}
	slices.SortFunc(listed.Queues, func(a, b api.WorkerQueue) int {
		if isFirst := a.Queue == queue; isFirst != (b.Queue == queue) {
			if isFirst {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Queue, b.Queue)
	})
	listed.Queues = listed.Queues[:min(len(listed.Queues), maxWorkerQueues)]
	return listed
}
