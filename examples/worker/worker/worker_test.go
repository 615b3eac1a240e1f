package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

func payload(t *testing.T, text string) overhop.Raw {
	t.Helper()
	raw, err := overhop.AppendFromJSON(nil, []byte(text), 16)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestHandlers(t *testing.T) {
	for _, tt := range []struct {
		function, params string
		attempt          uint32
		result           string // JSON; "" is none
		fails            string
		final            bool
	}{
		{"", `{"a":1}`, 1, "", "", false},
		{"unheard", `{"a":1}`, 1, "", `no function "unheard", only echo, fail, retry, sleep`, true},
		{"echo", `{"a":[1,"x"]}`, 1, `{"a":[1,"x"]}`, "", false},
		{"sleep", `{"ms":3600000}`, 1, "", "", false},
		{"sleep", `{"ms":-1}`, 1, "", "sleep needs", true},
		{"sleep", `[]`, 1, "", "sleep needs", true},
		{"fail", `{}`, 1, "", "failed on request", false},
		{"fail", `{"final":true}`, 1, "", "failed on request", true},
		{"retry", `{}`, 1, "", "failing attempt 1 of 1", false},
		{"retry", `{}`, 2, "2", "", false},
		{"retry", `{"times":2}`, 2, "", "failing attempt 2 of 2", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			q := overhop.Quest{Function: tt.function, Payload: payload(t, tt.params), Attempt: tt.attempt}
			o := Options{Delay: time.Minute}
			began := time.Now()
			result, err := o.handler()(t.Context(), &q)
			if time.Since(began) < time.Minute {
				t.Errorf("%s %s: no delay", tt.function, tt.params)
			}
			var failed *overhop.FailError
			if tt.fails != "" {
				if !errors.As(err, &failed) || !strings.Contains(failed.Message, tt.fails) || failed.Final != tt.final {
					t.Errorf("%s %s: error %v", tt.function, tt.params, err)
				}
				return
			}
			if got := string(overhop.AppendLossyJSON(nil, orNil(result))); err != nil || got != cmp.Or(tt.result, "null") {
				t.Errorf("%s %s: %s, %v", tt.function, tt.params, got, err)
			}
		})
	}
}

func orNil(r overhop.Raw) overhop.Raw {
	if len(r) == 0 {
		return overhop.Nil
	}
	return r
}

// A recalled job stops at once.
func TestHandlers_Recalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, recall := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, recall)
		q := overhop.Quest{Function: "sleep", Payload: payload(t, `{"ms":60000}`)}
		began := time.Now()
		_, err := (&Options{}).handler()(ctx, &q)
		if !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestFailRate(t *testing.T) {
	never, always := Options{FailRate: 0}, Options{FailRate: 1}
	for range 100 {
		if _, err := never.handler()(t.Context(), &overhop.Quest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := always.handler()(t.Context(), &overhop.Quest{}); err == nil {
			t.Fatal("did not fail")
		}
	}
}

func TestRun_Options(t *testing.T) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	good := Options{Queues: []string{"q"}, Credits: 1}
	for flag, spoil := range map[string]func(*Options){
		"queue":         func(o *Options) { o.Queues = nil },
		"addr":          func(o *Options) { o.Nodes = []string{"127.0.0.1:9876", "127.0.0.1:99999"} },
		"credits":       func(o *Options) { o.Credits = 0 },
		"handler-delay": func(o *Options) { o.Delay = -1 },
		"fail-rate":     func(o *Options) { o.FailRate = 1.5 },
		"tls-ca":        func(o *Options) { o.TLSCA = "worker_test.go" }, // no PEM
		"token-file":    func(o *Options) { o.TokenFile = "none.txt" },
		"tls-cert":      func(o *Options) { o.TLSKey = "key.pem" },
		"tls-key":       func(o *Options) { o.TLSCert = "cert.pem" },
	} {
		o := good
		spoil(&o)
		var wrong *OptionError
		if err := Run(t.Context(), o, log); !errors.As(err, &wrong) || wrong.Flag != flag {
			t.Errorf("%s: %v", flag, err)
		}
	}
	twice := good
	twice.Queues = []string{"q", "p", "q"}
	var wrong *OptionError
	if err := Run(t.Context(), twice, log); !errors.As(err, &wrong) || wrong.Flag != "queue" {
		t.Errorf("a queue twice: %v", err)
	}
	both := good
	both.Token, both.TokenFile = "mellon", "worker_test.go"
	if err := Run(t.Context(), both, log); !errors.As(err, &wrong) || wrong.Flag != "token-file" {
		t.Errorf("a token twice: %v", err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := Run(ended, good, log); err != nil {
		t.Errorf("told to stop: %v", err)
	}
}

func TestList(t *testing.T) {
	var l list
	for _, s := range []string{"a", "b, c"} {
		if err := l.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(l, list{"a", "b", "c"}) || l.String() != "a,b,c" {
		t.Errorf("list %v", l)
	}
	if l.Set("a,,b") == nil {
		t.Error("took an empty value")
	}
}

// Lines that are appended concurrently are complete when Append returns.
func TestWitness(t *testing.T) {
	path := filepath.Join(t.TempDir(), "witness")
	w, err := OpenWitness(path)
	if err != nil {
		t.Fatal(err)
	}
	const writers, each = 8, 20
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for j := range each {
				line := fmt.Sprintf("job-%d-%d 1 7", i, j)
				if err := w.Append(line); err != nil {
					t.Error(err)
				}
				if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), line+"\n") {
					t.Errorf("%s is missing: %v", line, err)
				}
			}
		})
	}
	all.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Append("late") == nil {
		t.Error("appended to a closed file")
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != writers*each {
		t.Errorf("%d lines, %v", strings.Count(string(text), "\n"), err)
	}
}

// An attempt that cannot be recorded fails.
func TestWitnessed(t *testing.T) {
	w, err := OpenWitness(filepath.Join(t.TempDir(), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	handler := withWitness(w, func(context.Context, *overhop.Quest) (overhop.Raw, error) { return overhop.Nil, nil })
	q := overhop.Quest{JID: "mail:x", Attempt: 2, Fence: 9}
	if _, err := handler(t.Context(), &q); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(w.file.Name())
	if err != nil || string(text) != "mail:x 2 9\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := handler(t.Context(), &q); err == nil {
		t.Error("succeeded without a witness")
	}
}
