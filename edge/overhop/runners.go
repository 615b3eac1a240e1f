package overhop

import "sync"

// maxIdleRunners is how many goroutines of a worker wait for jobs to run.
const maxIdleRunners = 64

// runners are the goroutines in which jobs run. One that has run a job waits for another,
// because its stack has grown to what handlers need.
type runners struct {
	all sync.WaitGroup

	mu      sync.Mutex
	idle    []chan *activeJob // of those that wait; the last of them was the last to run a job
	closing bool              // none waits any more
}

// start runs a job in a goroutine that does nothing else meanwhile.
func (r *runners) start(job *activeJob) {
	r.mu.Lock()
	last := len(r.idle) - 1
	if last < 0 {
		r.mu.Unlock()
		r.all.Go(func() { r.run(job) })
		return
	}
	next := r.idle[last]
	r.idle = r.idle[:last]
	r.mu.Unlock()
	next <- job
}

// run runs a job, and then those that start passes to it.
func (r *runners) run(job *activeJob) {
	next := make(chan *activeJob, 1)
	for job != nil {
		job.run()
		job = nil
		if r.await(next) {
			job = <-next // nil if it was closed
		}
	}
}

// await makes start pass a job to next. It reports false if no further goroutine is to wait.
func (r *runners) await(next chan *activeJob) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing || len(r.idle) >= maxIdleRunners {
		return false
	}
	r.idle = append(r.idle, next)
	return true
}

// wait blocks until all jobs have run. start must not be called after it.
func (r *runners) wait() {
	r.mu.Lock()
	r.closing = true
	for _, next := range r.idle {
		close(next)
	}
	r.idle = nil
	r.mu.Unlock()
	r.all.Wait()
}
