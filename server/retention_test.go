package server

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// A change of retention settings waits until the authority has applied them, and for a
// bounded time.
func TestRetention_NotApplied(t *testing.T) {
	down, before := scheduler.AuthorityStatus{Error: "no answer", RetentionIndex: 9}, scheduler.AuthorityStatus{RetentionIndex: 6, RetentionProblem: "earlier"}
	for _, tt := range []struct {
		name     string
		statuses []scheduler.AuthorityStatus // the last one is repeated
		want     string
	}{
		{"applied later", []scheduler.AuthorityStatus{down, before, {RetentionIndex: 7}}, ""},
		{"no space", []scheduler.AuthorityStatus{before, {RetentionIndex: 8, RetentionProblem: "no space"}}, "no space"},
		{"no confirmation", []scheduler.AuthorityStatus{before}, "the streams have not confirmed them within 2s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			h := &Retention{Status: func(context.Context) scheduler.AuthorityStatus {
				asked++
				return tt.statuses[min(asked, len(tt.statuses))-1]
			}}
			if got := h.notApplied(t.Context(), 7); !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			}
		})
	}
}
