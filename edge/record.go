package edge

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// jobFields returns a job as shown by JOB, LSJOB and AWAIT.
func (s *Server) jobFields(v *job.View) overhop.Fields {
	r := overhop.Fields{
		"uuid": v.ID.String(), "jid": jid(v.Queue, v.ID), "queue_name": v.Queue,
		"status": v.State.String(), "payload": payloadOf(v),
		"created_at": v.Created, "execution_start_at": timeOr(v.RunAt, v.Created),
		"max_attempts": intOrNil(int64(v.MaxAttempts)), "retry_interval_ms": intOrNil(v.RetryInterval.Milliseconds()),
		"runtime": s.runtimeFields(v),
		// The fields from here on are extensions.
		"priority": int64(v.Priority), "timeout_ms": intOrNil(v.Timeout.Milliseconds()),
		"result": resultOf(v), "error": faultOf(v),
		"started_at": timeOrNil(v.Started), "completed_at": timeOrNil(v.Ended),
		"worker_id": textOrNil(strings.TrimPrefix(v.Worker, "overhop/")), "node": textOrNil(v.Node),
	}
	if v.Function != "" {
		r["fn"] = v.Function
	}
	if v.PayloadGone {
		r["payload_gone"] = true
	}
	return r
}

// Running returns the lease and progress of a dispatch that runs at a worker of
// this node. ok is false if the dispatch is not here or not acknowledged.
func (s *Server) Running(id job.ID, n uint32) (r job.Progress, ok bool) {
	s.mu.Lock()
	d := s.dispatches[job.DispatchID{Job: id, N: n}]
	if d == nil || d.state != running && d.state != recalling {
		s.mu.Unlock()
		return r, false
	}
	lease, progress := d.leaseUntil, d.progress // progress is replaced, never changed in place
	s.mu.Unlock()
	r.Lease = lease
	if percent, known := progress.Get("percent").Int(); known {
		r.Percent = &percent
	}
	r.Data = jobValue(progress.Get("data"))
	return r, true
}

// runtimeFields returns a job's runtime part, with the lease and progress of a
// running dispatch: from this node, or from v if the dispatch is at another.
func (s *Server) runtimeFields(v *job.View) overhop.Fields {
	r := overhop.Fields{"attempts_so_far": v.Attempts, "last_error": textOrNil(v.Reason)}
	if now, here := s.Running(v.ID, v.Dispatches); here {
		r["lease_until"], r["progress"] = now.Lease, progressOf(&now)
	} else if v.Progress != nil {
		r["lease_until"], r["progress"] = v.Progress.Lease, progressOf(v.Progress)
	}
	if r["progress"] == nil {
		delete(r, "progress")
	}
	return r
}

// progressDepth is how deep the data of a progress may be nested. Within a
// record it is two levels deeper than the payload.
const progressDepth = recordDepth - 2

// progressOf returns the last PROGRESS of a dispatch, nil if there is none.
func progressOf(r *job.Progress) any {
	p := overhop.Fields{}
	if r.Percent != nil {
		p["percent"] = *r.Percent
	}
	if data := valueOf(r.Data, progressDepth); data != nil {
		p["data"] = data
	}
	if len(p) == 0 {
		return nil
	}
	return p
}

// payloadOf returns the job's body: params as a map, any other value unchanged.
// A MessagePack value that is nested too deeply is returned as its bytes.
func payloadOf(v *job.View) any {
	switch {
	case v.Spec == nil:
		return nil
	case len(v.Spec.Params) > 0:
		return fromJSON(v.Spec.Params, recordDepth)
	case len(v.Spec.Payload) > 0:
		return fromMsgpack(v.Spec.Payload, recordDepth)
	}
	return nil
}

// recordDepth is how deep a value may be nested within a record, which is
// itself within the envelope, the payload and a list.
const recordDepth = overhop.MaxDepth - 5

func fromJSON(text []byte, levels int) any {
	value, err := overhop.AppendFromJSON(nil, text, levels)
	if err != nil {
		return text
	}
	return overhop.Raw(value)
}

func fromMsgpack(b []byte, levels int) any {
	if overhop.CheckDepth(b, levels) != nil {
		return b
	}
	return overhop.Raw(b)
}

func resultOf(v *job.View) any { return valueOf(v.Result, recordDepth) }

func valueOf(v job.Value, levels int) any {
	switch {
	case len(v.Data) == 0:
		return nil
	case v.Msgpack:
		return fromMsgpack(v.Data, levels)
	}
	return fromJSON(v.Data, levels)
}

func faultOf(v *job.View) any {
	if v.Fault == nil {
		return nil
	}
	f := overhop.Fields{"message": v.Fault.Message}
	if v.Fault.Type != "" {
		f["type"] = v.Fault.Type
	}
	if v.Fault.Code != "" {
		f["code"] = v.Fault.Code
	}
	if len(v.Fault.Details) > 0 && json.Valid(v.Fault.Details) {
		f["details"] = fromJSON(v.Fault.Details, recordDepth)
	}
	return f
}

func timeOr(t, def time.Time) time.Time {
	if t.IsZero() {
		return def
	}
	return t
}

func intOrNil(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

func timeOrNil(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

func textOrNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// handleStatus answers with this node's figures, under the names of the
// reference server, and with the yard's under "cluster".
func (c *conn) handleStatus(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(p); err != nil {
		return nil, err
	}
	st, err := c.s.cluster.Status(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cfg := &c.s.cfg
	return overhop.Fields{
		"application": overhop.Fields{
			"name": "yardmaster", "version": cfg.Version, "build_date_utc": cfg.Built,
			"started_at": c.s.started, "now": now,
			"uptime_seconds": int64(now.Sub(c.s.started) / time.Second), "pid": os.Getpid(),
		},
		"memory": memoryStats(),
		"pools":  c.s.connStats(),
		"storage": overhop.Fields{
			"engine": "jetstream+raft", "data_path": st.DataPath, "path_exists": st.PathExists,
			"persisted_queues_count": st.Queues, "data_size_bytes": st.DataSize,
		},
		"queues": overhop.Fields{
			"bootstrapped": st.Bootstrapped, "total": st.Queues,
			"active": st.Queues - st.PausedQueues, "paused": st.PausedQueues,
		},
		"cluster": st.Cluster,
	}.Raw(), nil
}

// Counts holds the numbers of the edge's connections, registered workers and
// subscriptions, and the sum of the subscriptions' credits: how many jobs the
// workers would take now.
type Counts struct{ Connections, Registered, Subscriptions, Credits int }

// Counts returns the present numbers.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := Counts{Connections: len(s.anonymous) + len(s.workers), Registered: len(s.workers)}
	for _, c := range s.workers {
		n.Subscriptions += len(c.subs)
		for _, sub := range c.subs {
			n.Credits += int(sub.credits)
		}
	}
	return n
}

func (s *Server) connStats() overhop.Fields {
	s.mu.Lock()
	anonymous := make([]*conn, 0, len(s.anonymous))
	for c := range s.anonymous {
		anonymous = append(anonymous, c)
	}
	workers, subscriptions := len(s.workers), 0
	for _, c := range s.workers {
		subscriptions += len(c.subs)
	}
	s.mu.Unlock()
	helloed, challenged := 0, 0
	for _, c := range anonymous {
		c.sessionMu.Lock()
		if _, ok := c.session.HelloedAt(); ok {
			helloed++
		}
		if c.session.Challenged() {
			challenged++
		}
		c.sessionMu.Unlock()
	}
	return overhop.Fields{
		"anonymous_total": len(anonymous), "anonymous_helloed": helloed, "anonymous_ident_challenged": challenged,
		"workers_total": workers, "worker_subscriptions_total": subscriptions,
	}
}

// memoryStats returns the memory use of the process, where the system provides
// it.
func memoryStats() overhop.Fields {
	m := overhop.Fields{"source": "none", "available": false, "vm_rss_kb": nil, "vm_size_kb": nil, "vm_peak_kb": nil}
	if runtime.GOOS != "linux" {
		return m
	}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return m
	}
	m["source"], m["available"] = "/proc/self/status", true
	keys := map[string]string{"VmRSS": "vm_rss_kb", "VmSize": "vm_size_kb", "VmPeak": "vm_peak_kb"}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		if key := keys[name]; key != "" {
			if kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64); err == nil {
				m[key] = kb
			}
		}
	}
	return m
}
