package edge

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"yardmaster/internal/dialogue"
	"yardmaster/job"
)

// TestConversations plays what testdata/conversations says, and holds it
// against testdata/rows.tsv: what the protocol's tables say and nobody shows
// is not tested.
func TestConversations(t *testing.T) {
	scripts, err := dialogue.Load("testdata/conversations")
	if err != nil {
		t.Fatal(err)
	}
	var shown []dialogue.Exchange
	played := 0
	for _, s := range scripts {
		t.Run(s.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := play(t, &s)
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

func requireRows(t *testing.T, shown []dialogue.Exchange) {
	rows, err := dialogue.LoadRows("testdata/rows.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		found := false
		for _, x := range shown {
			if found = row.ShownBy(x); found {
				break
			}
		}
		switch {
		case !found && row.Why == "":
			t.Errorf("no conversation shows rows.tsv %s", row)
		case found && row.Why != "":
			t.Errorf("rows.tsv %s is said to be out of reach: %s; but it is shown", row, row.Why)
		}
	}
}

// play plays a conversation against a server of its own.
func play(t *testing.T, s *dialogue.Script) ([]dialogue.Exchange, error) {
	var cfg Config
	for _, line := range s.Config {
		key, text, _ := strings.Cut(line, " ")
		if err := configure(reflect.ValueOf(&cfg).Elem(), key, text); err != nil {
			return nil, fmt.Errorf("config %s: %w", line, err)
		}
	}
	cfg.Node = "n1"
	y := newWorkingYard()
	r := &rig{t: t, yard: y.memoryYard, ln: newPipeListener(), served: make(chan error, 1)}
	var err error
	if r.server, err = New(cfg, y, y, slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	y.server = r.server
	ctx := t.Context()
	ctx, r.stop = context.WithCancel(ctx)
	go func() { r.served <- r.server.Serve(ctx, r.ln) }()
	go y.run(ctx)
	shown, err := s.Play(dialogue.World{
		Dial: func(string) (net.Conn, error) { return r.ln.dial(), nil }, Settle: synctest.Wait,
		Unique: "-x", Do: func(words []string) error { return r.do(y, words) },
	})
	r.stop()
	if served := <-r.served; err == nil && served != nil {
		err = fmt.Errorf("serve: %w", served)
	}
	return shown, err
}

// configure sets the field that key names by its TOML tags.
func configure(at reflect.Value, key, text string) error {
	head, rest, _ := strings.Cut(key, ".")
	for i := range at.NumField() {
		if at.Type().Field(i).Tag.Get("toml") != head {
			continue
		}
		field := at.Field(i)
		if rest != "" {
			return configure(field, rest, text)
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

// do does what a conversation wants of its yard.
func (r *rig) do(y *workingYard, words []string) error {
	switch words[0] {
	case "fails":
		y.set(func() { y.fails = errBroken })
	case "unavailable":
		y.set(func() { y.fails = &job.UnavailableError{Reason: "no authority", RetryAfter: 2 * time.Second} })
	case "takes-no-more-queues":
		y.set(func() { y.most = len(y.queues) })
	case "works":
		y.set(func() { y.fails = nil })
	case "forgets-its-key":
		y.set(func() { y.secret = nil })
	case "knows-its-key":
		y.set(func() { y.secret = []byte("secret") })
	case "holds-outcomes":
		y.hold(true)
	case "takes-outcomes":
		y.hold(false)
	case "drains":
		r.server.Drain(Stops)
	case "stops":
		r.stop()
	case "recalls": // $jid REASON
		_, id, err := parseJID([]byte(words[1]))
		if err != nil {
			return err
		}
		y.recall(id, job.RecallReason(words[2]))
	default:
		return fmt.Errorf("a yard cannot do %q", words[0])
	}
	return nil
}
