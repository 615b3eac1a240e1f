package runnerpool

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// The test binary also serves as a runner and as a node, depending on the
// environment.
const (
	runnerMode = "YARD_TEST_RUNNER"
	nodeMode   = "YARD_TEST_NODE"
	wardenArg  = "warden-of-runners"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(runnerMode); mode != "" {
		runFakeRunner(mode, socketOf(os.Args, os.Getenv(socketEnv)))
	}
	if dir := os.Getenv(nodeMode); dir != "" {
		runNode(dir)
	}
	if len(os.Args) == 3 && os.Args[1] == wardenArg {
		if _, err := Warden(os.Stdin, os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func socketOf(args []string, socket string) string {
	for i, arg := range args[:len(args)-1] {
		if arg == socketArg {
			socket = args[i+1]
		}
	}
	return socket
}

// blockForever blocks in a way that the Go runtime does not report as a
// deadlock in a program without cgo.
func blockForever() { <-time.NewTimer(24 * time.Hour).C }

// runFakeRunner runs a runner with the misbehaviour that mode names.
func runFakeRunner(mode, socket string) {
	switch mode {
	case "crash-before-bind":
		fmt.Fprintln(os.Stderr, "no configuration")
		os.Exit(3)
	case "strict": // refuses arguments
		if len(os.Args) > 1 {
			fmt.Fprintln(os.Stderr, "unrecognized arguments:", os.Args[1:])
			os.Exit(2)
		}
	case "arg-only":
		socket = socketOf(os.Args, "")
	case "never-binds":
		blockForever()
	case "daemon": // the listener is a process outside of its group
		child := exec.Command(os.Args[0], socketArg, socket)
		child.Env = append(os.Environ(), runnerMode+"=good")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		blockForever()
	case "elsewhere":
		socket = "127.0.0.1:0"
	case "ignores-term":
		signal.Ignore(syscall.SIGTERM)
	case "tells":
		fmt.Println("args:", strings.Join(os.Args[1:], " "))
		fmt.Println("env:", os.Getenv(socketEnv))
		fmt.Fprintln(os.Stderr, `{"level":"debug","n":12345678901234567890}`)
		fmt.Println(strings.Repeat("x", 3*maxLine))
		fmt.Println("end")
	}
	ln, err := net.Listen("tcp", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if mode == "raw" {
		serveRaw(ln)
	}
	fmt.Fprintln(os.Stderr, rrq.Serve(context.Background(), ln, handleRequest))
	os.Exit(1)
}

func handleRequest(ctx context.Context, r *rrq.Request) rrq.Outcome {
	success := rrq.Outcome{Status: rrq.Success, Result: r.Params}
	switch r.Function {
	case "echo":
		return success
	case "context":
		b, err := json.Marshal(r.Context)
		if err != nil {
			panic(err)
		}
		return rrq.Outcome{Status: rrq.Success, Result: b}
	case "say":
		printLines(r)
		return success
	case "say-and-crash":
		fmt.Fprintln(os.Stderr, "panic: out of luck")
		os.Exit(7)
	case "pid":
		return rrq.Outcome{Status: rrq.Success, Result: fmt.Append(nil, os.Getpid())}
	case "wait": // until cancelled
		<-ctx.Done()
		return rrq.Outcome{}
	case "late": // answers when it is cancelled or its deadline passes, as if it had finished
		<-ctx.Done()
		return success
	case "hang":
		blockForever()
	case "crash":
		os.Exit(7)
	case "exit0":
		os.Exit(0)
	case "fork":
		child := exec.Command("sleep", "1000")
		if err := child.Start(); err != nil {
			return rrq.Outcome{Fault: &rrq.Fault{Message: err.Error()}}
		}
		return rrq.Outcome{Status: rrq.Success, Result: fmt.Append(nil, child.Process.Pid)}
	case "retry":
		after := -1.0
		return rrq.Outcome{Status: rrq.Retry, RetryAfter: &after}
	case "timeout":
		return rrq.Outcome{Status: rrq.Timeout, Fault: &rrq.Fault{}}
	case "error":
		return rrq.Outcome{Status: rrq.Error, Fault: &rrq.Fault{Message: "m", Type: "t", Code: "c", Details: json.RawMessage(`[1]`)}}
	case "bare-error":
		return rrq.Outcome{Status: rrq.Error}
	}
	return rrq.Outcome{Status: rrq.Error, Fault: &rrq.Fault{Type: rrq.HandlerNotFound}}
}

// printLines prints lines of every kind, and nothing when it answers.
func printLines(r *rrq.Request) {
	fmt.Println("plain of " + r.JobID)
	fmt.Printf("{\"job_id\":%q,\"msg\":\"by job\",\"n\":12345678901234567890}\n", r.JobID)
	fmt.Fprintf(os.Stderr, "{\"request_id\":%q,\"level\":\"warning\",\"timestamp\":\"then\",\"rrq.source\":\"forged\"}\n", r.RequestID)
	fmt.Printf("{\"level\":\"INFO\",\"span\":{\"rrq.job_id\":%q}}\n", r.JobID)
	fmt.Println(`{"job_id":"a stranger's","msg":"of somebody"}`)
	fmt.Println("{\"job_id\":\xff garbage")
	fmt.Println(strings.Repeat("x", 3*maxLine))
	fmt.Fprintln(os.Stderr, "to stderr")
}

// serveRaw sends answers that no runtime would send, depending on the
// function's name.
func serveRaw(ln net.Listener) {
	for {
		nc, err := ln.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			frames := frame.NewReader(nc, rrq.MaxFrame)
			for {
				b, err := frames.Next()
				if err != nil {
					_ = nc.Close()
					return
				}
				var m struct {
					Type    string
					Payload struct {
						RequestID string `json:"request_id"`
						JobID     string `json:"job_id"`
						Function  string `json:"function_name"`
					}
				}
				if json.Unmarshal(b, &m) == nil && m.Type == "request" {
					_, _ = nc.Write(rawResponse(nc, m.Payload.Function, m.Payload.JobID, m.Payload.RequestID))
				}
			}
		}()
	}
}

func rawResponse(nc net.Conn, function, id, request string) []byte {
	answer := func(id, request string) []byte {
		return frame.Append(nil, fmt.Appendf(nil, `{"type":"response","payload":{"job_id":%q,"request_id":%q,"status":"success"}}`, id, request))
	}
	switch function {
	case "twice":
		return append(answer(id, request), answer(id, request)...)
	case "twice-nameless":
		return append(answer(id, request), answer(id, "")...)
	case "nameless":
		return answer(id, "")
	case "stranger":
		return answer(id, "other")
	case "stranger-first":
		return append(answer(id, "other"), answer(id, request)...)
	case "foreign-job":
		return answer("other", request)
	case "garbage":
		return frame.Append(nil, []byte("garbage"))
	case "huge":
		return frame.Append(nil, make([]byte, 17<<20))
	case "eof":
		_ = nc.Close()
	case "answer-and-close":
		_, _ = nc.Write(answer(id, request))
		_ = nc.Close()
	case "never":
		return nil
	}
	return answer(id, request)
}

// runNode runs one pool until it is killed, and prints the pids of its runner
// and of a process that the runner forked.
func runNode(dir string) {
	h := newRecorder()
	cfg := testConfig("", func(c *RunnerConfig) { c.MaxInFlight = 2 })
	cfg.Dir = dir
	if len(os.Args) == 2 && os.Args[1] == wardenArg {
		cfg.Warden = []string{os.Args[0], wardenArg}
	}
	p := New(cfg, "n", h, slog.New(slog.DiscardHandler))
	go func() {
		fmt.Fprintln(os.Stderr, p.Run(context.Background())) // killed before it returns, or refused
		os.Exit(1)
	}()
	w := h.awaitOffer(2)
	for n, function := range []string{"pid", "fork"} {
		p.Start(assignment(n+1, function, w), specOf(`{}`))
		fmt.Println(string(h.awaitOutcome().Result.Data))
	}
	time.Sleep(time.Hour)
}

func startNode(dir string, args ...string) (cmd *exec.Cmd, runner, forked int, err error) {
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), nodeMode+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = fmt.Fscan(bufio.NewReader(out), &runner, &forked)
	}
	return cmd, runner, forked, err
}
