// Package console has the tests of the console in a browser, with real nodes. It is a module
// of its own because of the driver of the browser.
package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

const (
	annToken = "ann-token" // of an operator
	bobToken = "bob-token" // of a viewer
)

// users is the configuration of the users of the nodes, who may add many queues.
const users = `
[scheduler]
new_queues_per_minute = 1000

[[http.users]]
name = "ann"
role = "operator"
token = "` + annToken + `"

[[http.users]]
name = "bob"
role = "viewer"
token = "` + bobToken + `"
`

// shared is what the tests use together.
var shared struct {
	yard    *procs.Cluster
	browser context.Context
}

var (
	errNoBinary  = errors.New("needs the program at YARD_BIN")
	errNoBrowser = errors.New("needs Chromium: install it (Debian: apt-get install chromium)")
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		if missing := errors.Is(err, errNoBinary) || errors.Is(err, errNoBrowser); missing && os.Getenv("CI") == "" {
			fmt.Println("the tests of the console are skipped:", err)
			os.Exit(0)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	binary := os.Getenv("YARD_BIN")
	if binary == "" {
		return 0, errNoBinary
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		return 0, errNoBrowser
	}
	dir, err := os.MkdirTemp("", "console")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nodes := filepath.Join(dir, "nodes")
	if err := os.Mkdir(nodes, 0o700); err != nil {
		return 0, err
	}
	if shared.yard, err = procs.Start(ctx, procs.Options{Nodes: 3, Dir: nodes, Binary: binary, Config: users}); err != nil {
		return 0, err
	}
	defer shared.yard.Stop()
	worker, err := procs.StartProcess("worker", filepath.Join(dir, "worker.log"), nil, binary, "worker", "--name", "mailer", "--queue", "mail", "--queue", "webhooks", "--credits", "4",
		"--addr", shared.yard.Nodes[0].Edge, "--addr", shared.yard.Nodes[1].Edge, "--addr", shared.yard.Nodes[2].Edge)
	if err != nil {
		return 0, err
	}
	defer worker.Stop(time.Second)
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(chromium), chromedp.UserDataDir(filepath.Join(dir, "browser")), chromedp.NoSandbox, chromedp.Headless, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	defer stop()
	browser, stop := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {})) // of events that chromedp does not know
	defer stop()
	if err := chromedp.Run(browser); err != nil {
		return 0, fmt.Errorf("start the browser: %w", err)
	}
	shared.browser = browser
	if err := fill(); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// tab is a tab of the browser, in which nothing may fail.
type tab struct {
	context.Context
	t  *testing.T
	mu sync.Mutex

	tolerant bool // requests may fail
}

// newTab opens a tab, without cookies.
func newTab(t *testing.T) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(shared.browser)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	b := &tab{Context: ctx, t: t}
	chromedp.ListenTarget(ctx, b.receive)
	b.run(network.ClearBrowserCookies(), chromedp.EmulateViewport(1280, 800))
	return b
}

// receive reports errors of the console, exceptions, and violations of the content security
// policy.
func (b *tab) receive(event any) {
	b.mu.Lock()
	tolerant := b.tolerant
	b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.t.Errorf("exception: %s %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			b.t.Errorf("console: %s %v", e.Type, e.Args)
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError && !(tolerant && e.Entry.Source == log.SourceNetwork) {
			b.t.Errorf("log of the browser: %s %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	}
}

// tolerate sets whether requests may fail.
func (b *tab) tolerate(may bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tolerant = may
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// open opens a page of a node and waits until its script has run.
func (b *tab) open(node int, path string) {
	b.t.Helper()
	b.run(chromedp.Navigate("http://"+shared.yard.Nodes[node].HTTP+"/console/"+path), chromedp.WaitReady("html[data-ready]"))
}

// signIn signs in with a token.
func (b *tab) signIn(token string) {
	b.t.Helper()
	b.open(0, "queues")
	b.run(chromedp.SendKeys(`input[name=token]`, token), chromedp.Click(`//button[text()="Sign in with a token"]`), chromedp.WaitVisible(`//h1[text()="Queues"]`))
}

// eval returns the value of a JavaScript expression.
func eval[T any](b *tab, expression string) (value T) {
	b.t.Helper()
	b.run(chromedp.Evaluate(expression, &value))
	return value
}

// await waits until a JavaScript expression is true, on whichever page the tab is then.
func (b *tab) await(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b, 30*time.Second)
	defer cancel()
	var is bool
	var err error
	for ctx.Err() == nil {
		if err = chromedp.Run(ctx, chromedp.Evaluate("!!("+expression+")", &is)); is && err == nil { // an error: a page is being loaded
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	var text string
	_ = chromedp.Run(b, chromedp.Evaluate(`location.href + "\n" + document.body.innerText`, &text))
	b.t.Fatalf("%s: %v on the page %s", expression, err, strings.TrimSpace(text))
}
