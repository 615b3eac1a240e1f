package sequential

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// handlers maps function names to handlers with the behavior of those in the
// example runners.
var handlers = map[string]func(context.Context, *request) outcome{
	"echo": echo, "sleep": sleep, "fail": fail, "retry": retry, "crash": crash, "hang": hang, "big": large, "hash": hash,
}

type params struct {
	MS      int64    `json:"ms"`
	Message string   `json:"message"`
	Times   int64    `json:"times"`
	After   *float64 `json:"after"`
	Code    int      `json:"code"`
	Bytes   int      `json:"bytes"`
	Text    string   `json:"text"`
}

// parseParams returns the request's params. It panics if they are malformed:
// the scenarios send none that are.
func (q *request) parseParams() (p params) {
	p.Message, p.Code = "failed as asked", 1
	if err := json.Unmarshal(q.Params, &p); err != nil {
		panic(err)
	}
	return p
}

func echo(_ context.Context, q *request) outcome {
	return outcome{Status: "success", Result: q.Params}
}

func sleep(ctx context.Context, q *request) outcome {
	select {
	case <-time.After(time.Duration(q.parseParams().MS) * time.Millisecond):
		return echo(ctx, q)
	case <-ctx.Done():
		return outcome{Status: "error", Error: &fault{Message: "Job cancelled", Type: "cancelled"}}
	}
}

func fail(_ context.Context, q *request) outcome {
	return outcome{Status: "error", Error: &fault{Message: q.parseParams().Message, Type: "demo"}}
}

func retry(_ context.Context, q *request) outcome {
	p := q.parseParams()
	if q.Context.Attempt <= p.Times {
		return outcome{Status: "retry", RetryAfterSeconds: p.After}
	}
	return outcome{Status: "success", Result: fmt.Appendf(nil, `{"attempt":%d}`, q.Context.Attempt)}
}

// crash ends the process. With the param "times", it does so only in the first
// dispatches of the job.
func crash(ctx context.Context, q *request) outcome {
	p := q.parseParams()
	_, text, _ := strings.Cut(q.RequestID, "#")
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && p.Times > 0 && n > p.Times {
		return echo(ctx, q)
	}
	os.Exit(p.Code)
	return outcome{}
}

func hang(context.Context, *request) outcome {
	select {} // only the end of the process stops it
}

func large(_ context.Context, q *request) outcome {
	return outcome{Status: "success", Result: fmt.Appendf(nil, "%q", strings.Repeat("x", q.parseParams().Bytes))}
}

func hash(_ context.Context, q *request) outcome {
	text := q.parseParams().Text
	return outcome{Status: "success", Result: fmt.Appendf(nil, `{"bytes":%d,"sha256":"%x"}`, len(text), sha256.Sum256([]byte(text)))}
}

// lockJob reports a violation if the job is running in another process. The lock
// on the job's file is released with the process, or by release.
func (r *runner) lockJob(q *request) (release func()) {
	if r.witness == "" {
		return func() {}
	}
	f, err := os.OpenFile(filepath.Join(filepath.Dir(r.witness), q.JobID+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		r.reportViolation("job %s is already running and was sent again as %s: %v", q.JobID, q.RequestID, err)
		return func() {}
	}
	return func() { _ = f.Close() }
}
