package cli

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
)

// panicInHandler is a handler whose function must be found in the stack.
func panicInHandler(context.Context, *client.JobInfo) (any, error) {
	return outOfPaper(nil), nil
}

// outOfPaper panics over a nil map, below a handler.
func outOfPaper(pages map[string]int) int {
	pages["left"] = 0
	return len(pages)
}

// testPanic checks that the panic of a Go worker's handler arrives with its stack, from each attempt, in
// the lines of the verbs that show errors.
func testPanic(t *testing.T, f *fakeAPI, edge string) {
	c, err := client.Connect(t.Context(), edge)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w := c.Worker()
	w.Handle("prints", "print", panicInHandler)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c.Close()
	})
	got := f.run(t, "enqueue", "prints", "print", "--id", "p1", "--max-attempts", "2", "--retry-interval", "10ms", "--wait")
	if got.code != 1 {
		t.Fatalf("enqueue: code %d, %s%s", got.code, got.out, got.err)
	}
	wants := []string{"handler panicked: assignment to entry in nil map", "cli.outOfPaper(", "cli.panicInHandler(", "panic_test.go:"}
	for verb, times := range map[string]int{"errors": 2, "history": 2, "show": 1} {
		shown := f.run(t, "job", verb, "p1", "--queue", "prints")
		// History is published after the end of the job.
		for deadline := time.Now().Add(time.Minute); strings.Count(shown.out, wants[0]) < times && time.Now().Before(deadline); {
			time.Sleep(50 * time.Millisecond)
			shown = f.run(t, "job", verb, "p1", "--queue", "prints")
		}
		lines := strings.Split(shown.out, "\n")
		for _, want := range wants {
			n := 0
			for _, line := range lines {
				if strings.Contains(line, want) {
					n++
				}
			}
			if n < times {
				t.Errorf("job %s: %q is in %d lines, want %d:\n%s", verb, want, n, times, shown.out)
			}
		}
		if slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, `\n`) || strings.Contains(line, `\t`) }) {
			t.Errorf("job %s: the stack is not in lines:\n%s", verb, shown.out)
		}
	}
	shown := f.run(t, "job", "errors", "p1", "--queue", "prints", "--json")
	if n := len(regexp.MustCompile(`"dispatch": [12],`).FindAllString(shown.out, -1)); n != 2 || shown.code != 0 {
		t.Errorf("%d attempts in %s", n, shown.out)
	}
}
