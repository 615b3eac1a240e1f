package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// reasonSlack is how far a refusal and the status that explains it may be apart.
const reasonSlack = 10 * time.Second

// refusalLog counts calls that were not acknowledged, by code and text, and compares
// their times with the times at which a status showed a reason. Its methods may be called
// concurrently.
type refusalLog struct {
	mu      sync.Mutex
	groups  map[string]*refusalGroup
	visible []span // when a reason was visible, in order
	shown   map[string]int
}

// refusalGroup is a set of refusals with the same code and text, apart from numbers.
type refusalGroup struct {
	Code    string `json:"code"`
	Text    string `json:"text"`
	Count   int    `json:"count"`
	Hidden  int    `json:"hidden"`  // while no node showed a reason
	Example string `json:"example"` // of a hidden one, with its time
	seconds map[int64]int
}

// span is a time in which a reason was visible.
type span struct{ from, to time.Time }

func newRefusalLog() *refusalLog {
	return &refusalLog{groups: make(map[string]*refusalGroup), shown: make(map[string]int)}
}

// variable matches the parts of a text that differ between refusals with one cause.
var variable = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+(\.[0-9]+)?|q[0-9]{5}`)

// describe returns the code and the text of a failed call. unanswered is the code of a call
// that no node has answered.
func describe(err error) (code, text string) {
	text = err.Error()
	if refused, ok := errors.AsType[*api.Error](err); ok {
		code, text = refused.Code, refused.Text
	}
	if refused, ok := errors.AsType[*overhop.RemoteError](err); ok {
		code, text = string(refused.Code), refused.Message
	}
	text = variable.ReplaceAllString(text, "…")
	if code == "" {
		code = unanswered
		if errors.Is(err, context.DeadlineExceeded) {
			text = fmt.Sprintf("no answer within %s", sendTimeout)
		}
	}
	return code, text[:min(len(text), 200)]
}

const unanswered = "unanswered"

// note records a failed call.
func (l *refusalLog) note(err error) {
	code, text := describe(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[code+text]
	if g == nil {
		g = &refusalGroup{Code: code, Text: text, seconds: make(map[int64]int)}
		l.groups[code+text] = g
	}
	g.Count++
	g.seconds[time.Now().Unix()]++
}

// show records that a node shows reasons, or cannot be asked, now.
func (l *refusalLog) show(reasons []string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, reason := range reasons {
		l.shown[variable.ReplaceAllString(reason, "…")]++
	}
	if n := len(l.visible); n > 0 && now.Sub(l.visible[n-1].to) < 2*reasonSlack {
		l.visible[n-1].to = now
		return
	}
	l.visible = append(l.visible, span{now, now})
}

// reasonsOf returns what the status of a node shows as a reason to refuse jobs.
func reasonsOf(s *api.Status) (reasons []string) {
	reasons = append(slices.Clone(s.Readiness.Reasons), s.Readiness.Warnings...)
	for _, l := range s.Lanes {
		if l.Leader == "" {
			reasons = append(reasons, l.Stream+" has no leader")
		}
	}
	if !s.Readiness.Accepting && len(reasons) == 0 {
		reasons = append(reasons, "the node accepts no jobs")
	}
	return reasons
}

// result returns all groups, the most frequent first, and the reasons that were shown, with
// the number of statuses that had them.
func (l *refusalLog) result() (groups []refusalGroup, shown map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.groups {
		r := *g
		for second, count := range g.seconds {
			at := time.Unix(second, 0)
			if !l.explained(at) {
				r.Hidden += count
				r.Example = at.UTC().Format(time.TimeOnly)
			}
		}
		groups = append(groups, r)
	}
	slices.SortFunc(groups, func(a, b refusalGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Code+a.Text, b.Code+b.Text))
	})
	return groups, l.shown
}

// explained reports whether a reason was visible at about the time. mu is held.
func (l *refusalLog) explained(at time.Time) bool {
	return slices.ContainsFunc(l.visible, func(s span) bool {
		return at.After(s.from.Add(-reasonSlack)) && at.Before(s.to.Add(reasonSlack))
	})
}
