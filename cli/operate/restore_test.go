package operate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
)

// Reading the backup file keeps the session of a restore alive.
func TestRestore_KeepsSessionAlive(t *testing.T) {
	var sent []string
	b := &restoreClient{session: "s1", send: func(_ context.Context, _ time.Duration, subject string, request any) ([]byte, error) {
		sent = append(sent, fmt.Sprintf("%s %s", subject, request))
		return []byte(`{"session":"s1","node":"n1"}`), nil
	}} // its last request is long ago
	in := &keepAliveReader{strings.NewReader("the parts"), context.Background(), b}
	for range 2 {
		if _, err := in.Read(make([]byte, 3)); err != nil {
			t.Fatal(err)
		}
	}
	if want := `yard.api.v1.restore.wait {"session":"s1"}`; len(sent) != 1 || sent[0] != want {
		t.Errorf("requests %q, want %q", sent, want)
	}
}

// A refused restore is distinguished from one that may have begun.
func TestRestore_Refused(t *testing.T) {
	for _, err := range []error{
		&cluster.ForbiddenError{Subject: "yard.api.v1.restore.begin"},
		&api.Error{Code: api.CodeConflict, Text: "this yard has accepted jobs"},
	} {
		if !refusedToStart(fmt.Errorf("request: %w", err)) {
			t.Errorf("%v counts as a restore that began", err)
		}
	}
	for _, err := range []error{&api.Error{Code: api.CodeUnavailable, Text: "no authority"}, context.DeadlineExceeded} {
		if refusedToStart(err) {
			t.Errorf("%v counts as a refusal", err)
		}
	}
}

// Only of a restore that has begun is said that the yard accepts nothing and that it can
// be abandoned; where that is not known, the error names the command that shows it.
func TestRestore_Explain(t *testing.T) {
	const hint, closed = "repeat it or use --abandon", "the yard accepts nothing"
	for _, tt := range []struct {
		name      string
		started   bool
		err       error
		want, not string
	}{
		{"refused", false, &api.Error{Code: api.CodeConflict, Text: "this yard has accepted jobs"}, "has accepted jobs", closed},
		{"unavailable at first", false, &api.Error{Code: api.CodeUnavailable, Text: "no authority"}, "if not, the yard is unchanged", ""},
		{"no reply at first", false, context.DeadlineExceeded, "'yardmaster status' shows whether it has begun", ""},
		{"begun", true, &api.Error{Code: api.CodeUnavailable, Text: "no authority"}, hint + "; until then " + closed, "yardmaster status"},
	} {
		text := (&restoreClient{started: tt.started}).explain(tt.err, hint).Error()
		if !strings.Contains(text, tt.want) || tt.not != "" && strings.Contains(text, tt.not) {
			t.Errorf("%s: %q, want %q and not %q", tt.name, text, tt.want, tt.not)
		}
	}
}
