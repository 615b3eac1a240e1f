package edge

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
	"github.com/yardmaster-dev/yardmaster/test/wirescript"
)

// TestWireScripts runs the scripts in testdata/conversations and checks that
// they cover every row of testdata/rows.tsv, the protocol's tables.
func TestWireScripts(t *testing.T) {
	scripts, err := wirescript.Load("testdata/conversations")
	if err != nil {
		t.Fatal(err)
	}
	var shown []wirescript.Exchange
	played := 0
	for _, s := range scripts {
		t.Run(s.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := playScript(t, &s)
				if err != nil {
					t.Fatal(err)
				}
				shown = append(shown, got...)
			})
			played++
		})
	}
	if played == len(scripts) && !t.Failed() {
		requireRows(t, shown)
	}
}

func requireRows(t *testing.T, exchanges []wirescript.Exchange) {
	rows, err := wirescript.LoadRows("testdata/rows.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		found := false
		for _, x := range exchanges {
			if found = row.CoveredBy(x); found {
				break
			}
		}
		switch {
		case !found && row.Untestable == "":
			t.Errorf("no conversation shows rows.tsv %s", row)
		case found && row.Untestable != "":
			t.Errorf("rows.tsv %s is marked as untestable: %s; but a script covers it", row, row.Untestable)
		}
	}
}

// playScript runs a script against its own server.
func playScript(t *testing.T, s *wirescript.Script) ([]wirescript.Exchange, error) {
	var cfg Config
	for _, line := range s.Config {
		key, text, _ := strings.Cut(line, " ")
		if err := setConfigField(reflect.ValueOf(&cfg).Elem(), key, text); err != nil {
			return nil, fmt.Errorf("config %s: %w", line, err)
		}
	}
	cfg.Node = "n1"
	c := newSchedulingCluster()
	r := &harness{t: t, cluster: c.memCluster, ln: newPipeListener(), served: make(chan error, 1)}
	var err error
	var log *slog.Logger
	log, r.log = testlog.NewRecorder(t)
	if r.server, err = New(cfg, c, c, log); err != nil {
		return nil, err
	}
	c.server = r.server
	ctx := t.Context()
	ctx, r.stop = context.WithCancel(ctx)
	go func() { r.served <- r.server.Serve(ctx, r.ln) }()
	go c.run(ctx)
	shown, err := s.Run(wirescript.Env{
		Dial: func(string) (net.Conn, error) { return r.ln.dial(), nil }, AwaitIdle: synctest.Wait,
		Suffix: "-x", Exec: func(words []string) error { return r.doCommand(c, words) },
	})
	r.stop()
	if served := <-r.served; err == nil && served != nil {
		err = fmt.Errorf("serve: %w", served)
	}
	if slices.Contains(r.log.Messages(slog.LevelInfo), "job log line") { // workers would fill the node's log
		t.Error("lines of a job's log are in the node's log at level info")
	}
	return shown, err
}

// setConfigField sets the field that key names by its TOML tags.
func setConfigField(at reflect.Value, key, text string) error {
	head, rest, _ := strings.Cut(key, ".")
	for i := range at.NumField() {
		if at.Type().Field(i).Tag.Get("toml") != head {
			continue
		}
		field := at.Field(i)
		if rest != "" {
			return setConfigField(field, rest, text)
		}
		if _, ok := field.Interface().(time.Duration); ok {
			d, err := time.ParseDuration(text)
			field.SetInt(int64(d))
			return err
		}
		if field.Kind() == reflect.Pointer {
			field.Set(reflect.New(field.Type().Elem()))
			field = field.Elem()
		}
		_, err := fmt.Sscan(text, field.Addr().Interface())
		return err
	}
	return fmt.Errorf("there is no key %q", head)
}

// doCommand executes a script's command about the yard.
func (h *harness) doCommand(y *schedulingCluster, words []string) error {
	switch words[0] {
	case "fails":
		y.withLock(func() { y.readErr = errDisk })
	case "unavailable":
		y.withLock(func() { y.readErr = &job.UnavailableError{Reason: "no authority", RetryAfter: 2 * time.Second} })
	case "takes-no-more-queues":
		y.withLock(func() { y.maxQueues = len(y.queues) })
	case "works":
		y.withLock(func() { y.readErr = nil })
	case "forgets-its-key":
		y.withLock(func() { y.secret = nil })
	case "knows-its-key":
		y.withLock(func() { y.secret = []byte("secret") })
	case "holds-outcomes":
		y.setHoldOutcomes(true)
	case "takes-outcomes":
		y.setHoldOutcomes(false)
	case "drains":
		h.server.Drain(DrainReasonStop)
	case "stops":
		h.stop()
	case "recalls": // $jid REASON
		_, id, err := parseJID([]byte(words[1]))
		if err != nil {
			return err
		}
		y.recall(id, job.RecallReason(words[2]), "")
	default:
		return fmt.Errorf("unknown yard command %q", words[0])
	}
	return nil
}
