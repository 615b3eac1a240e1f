package crash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

func countOf(where Where) (n uint64) {
	Counts(func(name string, panics uint64) {
		if name == where.String() {
			n = panics
		}
	})
	return n
}

// faultyError is an error whose text cannot be read.
type faultyError struct{}

func (*faultyError) Error() string { panic("no text") }

// TestContain checks what becomes of a panic: an error, a log line with the stack, and a count.
func TestContain(t *testing.T) {
	before := countOf(Runner)
	log, recorder := testlog.NewRecorder(t)
	for _, cause := range []any{"first", nil, errors.New("an error"), (*faultyError)(nil)} {
		var got error
		func() {
			defer Contain(log, Runner, func(err error) { got = err })
			panic(cause)
		}()
		if got == nil || !strings.Contains(got.Error(), "panic: ") {
			t.Errorf("panic(%T) gave %v", cause, got)
		}
	}
	func() {
		defer Contain(log, Runner, func(err error) { t.Errorf("%v without a panic", err) })
	}()
	if n := countOf(Runner) - before; n != 4 {
		t.Errorf("%d panics counted, want 4", n)
	}
	if lines := strings.Join(recorder.Lines(slog.LevelError), "\n"); !strings.Contains(lines, "crash.TestContain") || !strings.Contains(lines, "where=runner") {
		t.Errorf("logged without the stack:\n%s", lines)
	}
}

// TestContain_AbortHandler checks that a handler can give up its response.
func TestContain_AbortHandler(t *testing.T) {
	defer func() {
		if cause := recover(); cause != http.ErrAbortHandler {
			t.Errorf("the panic goes on with %v", cause)
		}
	}()
	defer Contain(testlog.New(t), HTTP, func(error) { t.Error("it was contained") })
	panic(http.ErrAbortHandler)
}

// TestGroup checks that Wait returns errors, repeats panics with their stack, and ends the context.
func TestGroup(t *testing.T) {
	var group Group
	group.Run(func() {})
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	failing, ctx := WithContext(context.Background())
	failing.Go(func() error { return os.ErrClosed })
	failing.Go(func() error { <-ctx.Done(); return nil })
	if err := failing.Wait(); err != os.ErrClosed {
		t.Errorf("Wait returns %v", err)
	}
	panicking, ctx := WithContext(context.Background())
	panicking.SetLimit(2)
	panicking.Go(func() error { panicInGroup(); return nil })
	panicking.Go(func() error { <-ctx.Done(); return nil })
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "in a group") || !strings.Contains(text, "panicInGroup") {
			t.Errorf("Wait panics with %s", text)
		}
	}()
	err := panicking.Wait()
	t.Errorf("Wait returns %v", err)
}

func panicInGroup() { panic("in a group") }

// endings are what must end the process, whatever contains panics farther up.
var endings = map[string]func(*testing.T){
	"deferred": func(t *testing.T) {
		var mu Mutex
		defer Contain(testlog.Discard(), HTTP, nil)
		mu.Lock()
		defer mu.Unlock()
		panic("state is half changed")
	},
	"unlocked by a method": func(t *testing.T) {
		var mu Mutex
		defer Contain(testlog.Discard(), HTTP, nil)
		mu.Lock()
		unlock := func() { EndOn(recover()); mu.Unlock() }
		defer unlock()
		panic("state is half changed")
	},
}

// TestMutex_Ends checks that a panic ends the process if a lock of shared state was held.
func TestMutex_Ends(t *testing.T) {
	const variable = "YARDMASTER_CRASH_ENDING"
	if name := os.Getenv(variable); name != "" {
		endings[name](t)
		return
	}
	for name := range endings {
		cmd := exec.Command(os.Args[0], "-test.run=^TestMutex_Ends$")
		cmd.Env = append(os.Environ(), variable+"="+name)
		output, err := cmd.CombinedOutput()
		exit, failed := errors.AsType[*exec.ExitError](err)
		text := string(output)
		if !failed || exit.ExitCode() != 2 || !strings.Contains(text, "panic: ") || !strings.Contains(text, "lock of shared state") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		if !strings.Contains(text, "half changed") || !strings.Contains(text, "crash_test.go") {
			t.Errorf("%s: no stack of the origin:\n%s", name, text)
		}
	}
}

// TestMutex checks that a Mutex excludes, also after a panic was contained.
func TestMutex(t *testing.T) {
	for range 2 {
		var mu Mutex
		held := true
		mu.Lock()
		if mu.TryLock() {
			t.Error("locked twice")
		}
		go func() {
			held = false
			mu.Unlock()
		}()
		mu.Lock()
		if held {
			t.Error("locked twice")
		}
		mu.Unlock()
		func() {
			defer Contain(testlog.New(t), Job, nil)
			panic("for the second round")
		}()
	}
}

// TestIsStuck checks for how long a lock may be held after a panic was contained.
func TestIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locked := make(chan struct{})
		go func() {
			time.Sleep(2*stuckAfter - time.Second)
			close(locked)
		}()
		if isStuck(locked) {
			t.Error("stuck before the time is over")
		}
		if !isStuck(make(chan struct{})) {
			t.Error("not stuck after it")
		}
	})
}
