package edge

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// record is a job as JOB, LSJOB and AWAIT show it.
func (s *Server) record(v *job.View) overhop.Fields {
	r := overhop.Fields{
		"uuid": v.ID.String(), "jid": jid(v.Queue, v.ID), "queue_name": v.Queue,
		"status": v.State.String(), "payload": payloadOf(v),
		"created_at": v.Created, "execution_start_at": later(v.RunAt, v.Created),
		"max_attempts": orNil(int64(v.MaxAttempts)), "retry_interval_ms": orNil(v.RetryInterval.Milliseconds()),
		"runtime": s.runtimeOf(v),
		// From here on our additions.
		"priority": int64(v.Priority), "timeout_ms": orNil(v.Timeout.Milliseconds()),
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

// Running tells what only this node knows of a dispatch in its workers' hands;
// ok is false if it is not here or not acknowledged.
func (s *Server) Running(id job.ID, n uint32) (r job.Running, ok bool) {
	s.mu.Lock()
	d := s.dispatches[ref{id, n}]
	if d == nil || d.state != running && d.state != recalling {
		s.mu.Unlock()
		return r, false
	}
	lease, progress := d.lease, d.progress // which is replaced, never changed
	s.mu.Unlock()
	r.Lease = lease
	if percent, told := progress.Get("percent").Int(); told {
		r.Percent = &percent
	}
	r.Data = value(progress.Get("data"))
	return r, true
}

// runtimeOf adds what is known of a dispatch in a worker's hands: at this node
// always, at another one if v came with it.
func (s *Server) runtimeOf(v *job.View) overhop.Fields {
	r := overhop.Fields{"attempts_so_far": v.Attempts, "last_error": textOrNil(v.Reason)}
	if now, here := s.Running(v.ID, v.Dispatches); here {
		r["lease_until"], r["progress"] = now.Lease, progressOf(&now)
	} else if v.Running != nil {
		r["lease_until"], r["progress"] = v.Running.Lease, progressOf(v.Running)
	}
	if r["progress"] == nil {
		delete(r, "progress")
	}
	return r
}

// progressLevels is how deep the data of a progress may be nested, which stands
// two levels deeper in a record than its payload.
const progressLevels = recordLevels - 2

// progressOf is a worker's last PROGRESS; nil if it has not sent any.
func progressOf(r *job.Running) any {
	p := overhop.Fields{}
	if r.Percent != nil {
		p["percent"] = *r.Percent
	}
	if data := valueOf(r.Data, progressLevels); data != nil {
		p["data"] = data
	}
	if len(p) == 0 {
		return nil
	}
	return p
}

// payloadOf is the job's body: params as a map, any other value as it came. A
// MessagePack value that this wire does not carry is shown as its bytes.
func payloadOf(v *job.View) any {
	switch {
	case v.Spec == nil:
		return nil
	case len(v.Spec.Params) > 0:
		return fromJSON(v.Spec.Params, recordLevels)
	case len(v.Spec.Payload) > 0:
		return fromMsgpack(v.Spec.Payload, recordLevels)
	}
	return nil
}

// recordLevels is how deep a value may be nested within a record, below the
// envelope, the payload, a list and the record itself.
const recordLevels = overhop.MaxDepth - 5

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

func resultOf(v *job.View) any { return valueOf(v.Result, recordLevels) }

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
		f["details"] = fromJSON(v.Fault.Details, recordLevels)
	}
	return f
}

func later(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

func orNil(n int64) any {
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

// handleStatus tells of this node, in the words of the reference server, and
// of the yard under "cluster".
func (c *conn) handleStatus(ctx context.Context, p overhop.Raw) (overhop.Raw, error) {
	if err := overhop.ParseEmpty(p); err != nil {
		return nil, err
	}
	st, err := c.s.yard.Status(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cfg := &c.s.cfg
	return overhop.AppendValue(nil, overhop.Fields{
		"application": overhop.Fields{
			"name": "yardmaster", "version": cfg.Version, "build_date_utc": cfg.Built,
			"started_at": c.s.started, "now": now,
			"uptime_seconds": int64(now.Sub(c.s.started) / time.Second), "pid": os.Getpid(),
		},
		"memory": memory(),
		"pools":  c.s.pools(),
		"storage": overhop.Fields{
			"engine": "jetstream+raft", "data_path": st.DataPath, "path_exists": st.PathExists,
			"persisted_queues_count": st.Queues, "data_size_bytes": st.DataSize,
		},
		"queues": overhop.Fields{
			"bootstrapped": st.Bootstrapped, "total": st.Queues,
			"active": st.Queues - st.PausedQueues, "paused": st.PausedQueues,
		},
		"cluster": st.Cluster,
	}), nil
}

// Counts are this edge's connections, and the credits of their subscriptions:
// how many jobs their workers would take now.
type Counts struct{ Connections, Registered, Subscriptions, Credits int }

// Counts gives the connections as they are now.
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

func (s *Server) pools() overhop.Fields {
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
		c.order.Lock()
		if _, ok := c.session.HelloedAt(); ok {
			helloed++
		}
		if c.session.Challenged() {
			challenged++
		}
		c.order.Unlock()
	}
	return overhop.Fields{
		"anonymous_total": len(anonymous), "anonymous_helloed": helloed, "anonymous_ident_challenged": challenged,
		"workers_total": workers, "worker_subscriptions_total": subscriptions,
	}
}

// memory reads the process's own numbers where the system tells them.
func memory() overhop.Fields {
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
