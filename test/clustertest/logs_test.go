package clustertest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/cli"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// log is a job's log as reported by a member.
type log struct {
	ID    job.ID
	Lines []job.LogLine
	More  bool
	Next  uint64
}

// logOf waits until a member shows this number of lines of a job's log.
func logOf(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, id string, lines int) (l log) {
	t.Helper()
	cl.Eventually(fmt.Sprintf("%s shows %d lines", m.Name, lines), func() error {
		l = log{}
		if err := m.API("job.logs", map[string]any{"id": id}, &l); err != nil {
			return err
		}
		if len(l.Lines) != lines {
			return fmt.Errorf("it shows %d lines: %+v", len(l.Lines), l.Lines)
		}
		return nil
	})
	return l
}

// logs checks that the log of a job can be read at any node, also after the node that ran
// the job has stopped.
func logs(t *testing.T, cl *clustertest.Cluster) {
	a := cl.Members[0]
	a.AddQueue(t, "saying", 0)
	id := a.Enqueue(t, "saying", `{"function":"demo#say","params":{"text":"hello"}}`).String()
	if j := a.WaitOutcome(t, id); j.State != "completed" || j.Attempts != 3 {
		t.Fatalf("%+v", j)
	}
	var nodes []string
	for _, m := range cl.Members {
		seen := map[string]int{}
		for _, l := range logOf(t, cl, m, id, 6).Lines {
			if l.Job.String() != id || l.Attempt != l.N || l.At.IsZero() || !strings.HasPrefix(l.Worker, "demo/") {
				t.Errorf("line is %+v", l)
			}
			var record map[string]any
			switch {
			case l.Stream == job.LogStdout && l.Text == "hello" && l.Level == "info":
			case l.Stream == job.LogStderr && json.Unmarshal(l.Record, &record) == nil &&
				record["attempt"] == float64(l.N) && record["level"] == "ERROR" && record["rrq.runner"] == "demo":
			default:
				t.Errorf("line is %+v", l)
			}
			seen[fmt.Sprint(l.N, l.Stream)]++
			nodes = append(nodes, l.Node)
		}
		if len(seen) != 6 {
			t.Errorf("%s shows %v", m.Name, seen)
		}
	}

	t.Run("Worker", func(t *testing.T) { workerLogs(t, cl) })
	t.Run("Command", func(t *testing.T) { logCommand(t, cl, id) })
	t.Run("Unknown", func(t *testing.T) {
		var l log
		wantCode(t, a.API("job.logs", map[string]any{"id": "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"}, &l), "404")
		wantCode(t, a.API("job.logs", map[string]any{"id": id, "lines": 2000}, &l), "400")
		quiet := a.Enqueue(t, "saying", `{"function":"demo#trace","params":{}}`).String()
		a.WaitOutcome(t, quiet)
		if l := logOf(t, cl, a, quiet, 0); l.More {
			t.Errorf("%+v", l)
		}
	})
	t.Run("Failover", func(t *testing.T) {
		for _, m := range cl.Members {
			if m.Name == nodes[0] {
				m.Stop()
				left := cl.Running()[0]
				cl.WaitAuthority(m)
				logOf(t, cl, left, id, 6)
				next := left.Enqueue(t, "saying", `{"function":"demo#say","params":{"text":"again"}}`).String()
				left.WaitOutcome(t, next)
				logOf(t, cl, cl.Running()[1], next, 6)
			}
		}
	})
}

func workerLogs(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "talk", 0)
	b.Worker(t, "talk", 1, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		return nil, q.Log(ctx, "one", "two")
	})
	id := a.Enqueue(t, "talk", `{"params":{}}`).String()
	a.WaitOutcome(t, id)
	for i, l := range logOf(t, cl, a, id, 2).Lines {
		if l.Text != []string{"one", "two"}[i] || l.Stream != job.LogWire || l.Node != b.Name || l.Level != "info" {
			t.Errorf("line is %+v", l)
		}
	}
}

// lineChan receives the lines that a command prints.
type lineChan chan string

func (l lineChan) Write(p []byte) (int, error) {
	for line := range strings.SplitSeq(strings.TrimSuffix(string(p), "\n"), "\n") {
		l <- line
	}
	return len(p), nil
}

// logCommand checks that the command line prints the end of a log and follows it.
func logCommand(t *testing.T, cl *clustertest.Cluster, id string) {
	a := cl.Members[0]
	if out, code := command(t, a, "job", "logs", id, "--lines", "4"); code != 0 || strings.Count(out, "hello") != 2 || strings.Count(out, "\n") != 5 {
		t.Errorf("exit code %d: %s", code, out)
	}
	if out, code := command(t, a, "job", "logs", id, "--json"); code != 0 || strings.Count(out, `"text":"hello"`) != 3 {
		t.Errorf("exit code %d: %s", code, out)
	}
	a.AddQueue(t, "slow-talk", 0)
	say := make(chan string, 3) // lines to log, until it is closed
	a.Worker(t, "slow-talk", 1, func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		for {
			select {
			case text, more := <-say:
				if !more {
					return nil, nil
				}
				if err := q.Log(ctx, text); err != nil {
					return nil, err
				}
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	})
	slow := a.Enqueue(t, "slow-talk", `{"params":{}}`).String()
	say <- "first"
	logOf(t, cl, a, slow, 1)
	ctx, stop := context.WithCancel(shortContext(t))
	shown, ended := make(lineChan, 100), make(chan int, 1)
	go func() {
		ended <- cli.Run(ctx, []string{"job", "logs", slow, "--follow", "--server", a.Node().Addresses().NATS},
			cli.Streams{In: strings.NewReader(""), Out: shown, Err: shown}, cli.Program{Version: "v0.0.0-test"})
	}()
	for _, want := range []string{"first", "second", "third"} {
		select {
		case line := <-shown:
			if !strings.HasSuffix(line, " info  "+want) {
				t.Errorf("shown is %q, want %q", line, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%q is not shown", want)
		}
		if next := map[string]string{"first": "second", "second": "third"}[want]; next != "" {
			say <- next
		}
	}
	close(say)
	a.WaitOutcome(t, slow)
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
}
