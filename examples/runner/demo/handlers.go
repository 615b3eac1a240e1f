package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// handlers holds the handlers by name. If a handler returns an outcome without
// a status, rrq.Serve sets it according to what ended ctx.
var handlers = map[string]rrq.Handler{
	"echo":  echo,
	"sleep": sleep,
	"fail":  fail,
	"retry": retry,
	"crash": crash,
	"hang":  hang,
	"big":   big,
	"hash":  hash,
}

// handle records a request in the witness file and runs its handler.
func (w *witness) handle(ctx context.Context, r *rrq.Request) rrq.Outcome {
	h := handlers[r.Function]
	if h == nil {
		return failed(rrq.Fault{Message: fmt.Sprintf("No handler registered for function '%s'", r.Function), Type: rrq.HandlerNotFound})
	}
	if err := w.write(r); err != nil {
		return failed(rrq.Fault{Message: err.Error(), Type: "witness"})
	}
	defer w.end(r)
	return h(ctx, r)
}

// echo returns its params.
func echo(_ context.Context, r *rrq.Request) rrq.Outcome {
	return rrq.Outcome{Status: rrq.Success, Result: r.Params}
}

// sleep waits {"ms": n} milliseconds and returns its params.
func sleep(ctx context.Context, r *rrq.Request) rrq.Outcome {
	var p struct {
		MS int64 `json:"ms"`
	}
	if fault := params(r, &p); fault != nil {
		return failed(*fault)
	}
	timer := time.NewTimer(time.Duration(p.MS) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return echo(ctx, r)
	case <-ctx.Done():
		return rrq.Outcome{}
	}
}

// fail always fails, with {"message": text} if given.
func fail(_ context.Context, r *rrq.Request) rrq.Outcome {
	p := struct {
		Message string `json:"message"`
	}{Message: "failed as asked"}
	if fault := params(r, &p); fault != nil {
		return failed(*fault)
	}
	return failed(rrq.Fault{Message: p.Message, Type: "demo"})
}

// retry requests {"times": n} further attempts, after {"after": s} seconds if
// given, and then succeeds.
func retry(_ context.Context, r *rrq.Request) rrq.Outcome {
	var p struct {
		Times uint32   `json:"times"`
		After *float64 `json:"after"`
	}
	if fault := params(r, &p); fault != nil {
		return failed(*fault)
	}
	if r.Context.Attempt <= p.Times {
		return rrq.Outcome{Status: rrq.Retry, RetryAfter: p.After}
	}
	return rrq.Outcome{Status: rrq.Success, Result: fmt.Appendf(nil, `{"attempt":%d}`, r.Context.Attempt)}
}

// crash exits the process with {"code": n}, 1 by default. With {"times": n} it
// does so only in the job's first n dispatches and then returns its params.
func crash(ctx context.Context, r *rrq.Request) rrq.Outcome {
	p := struct {
		Code  int    `json:"code"`
		Times uint64 `json:"times"`
	}{Code: 1}
	if fault := params(r, &p); fault != nil {
		return failed(*fault)
	}
	_, dispatch, _ := strings.Cut(r.Context.DispatchID, "#")
	if n, err := strconv.ParseUint(dispatch, 10, 32); err == nil && p.Times > 0 && n > p.Times {
		return echo(ctx, r)
	}
	os.Exit(p.Code)
	return rrq.Outcome{}
}

// hang never returns and ignores cancels: only the end of its process stops it.
func hang(context.Context, *rrq.Request) rrq.Outcome {
	<-make(chan struct{})
	return rrq.Outcome{}
}

// big returns a string of {"bytes": n} bytes.
func big(_ context.Context, r *rrq.Request) rrq.Outcome {
	var p struct {
		Bytes int `json:"bytes"`
	}
	if fault := params(r, &p); fault != nil {
		return failed(*fault)
	}
	if p.Bytes < 0 || p.Bytes > 2*rrq.MaxFrame {
		return failed(rrq.Fault{Message: fmt.Sprintf("bytes is %d; must be 0 to %d", p.Bytes, 2*rrq.MaxFrame), Type: "params"})
	}
	result := make([]byte, 0, p.Bytes+2)
	result = append(result, '"')
	result = append(result, bytes.Repeat([]byte{'x'}, p.Bytes)...)
	return rrq.Outcome{Status: rrq.Success, Result: append(result, '"')}
}

// hash returns the SHA-256 of {"text": text} and its length in bytes, without
// the text itself.
func hash(_ context.Context, r *rrq.Request) rrq.Outcome {
	var p struct {
		Text string `json:"text"`
	}
	if fault := params(r, &p); fault != nil {
		return failed(*fault)
	}
	return rrq.Outcome{Status: rrq.Success, Result: fmt.Appendf(nil, `{"bytes":%d,"sha256":"%x"}`, len(p.Text), sha256.Sum256([]byte(p.Text)))}
}

func params(r *rrq.Request, p any) *rrq.Fault {
	if err := json.Unmarshal(r.Params, p); err != nil {
		return &rrq.Fault{Message: fmt.Sprintf("params of %s: %v", r.Function, err), Type: "params"}
	}
	return nil
}

func failed(f rrq.Fault) rrq.Outcome { return rrq.Outcome{Status: rrq.Error, Fault: &f} }
