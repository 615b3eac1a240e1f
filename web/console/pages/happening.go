package pages

import (
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/draw"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// Happening is something that happened in the yard, besides changes of jobs.
type Happening struct {
	api.OverviewHappening
	Kind   string // election, handover, drain, start, deploy, member, operation or change
	Before string // of a deploy: the reason of the earlier start, which has its version
}

// nodeStart is the action of a node that has started. Its reason has the version.
const nodeStart = "node.start"

// happeningsOf returns the kinds of what happened, newest first. The start of a node with
// another version than at its start before is a deploy.
func happeningsOf(timeline []api.OverviewHappening) []Happening {
	all := make([]Happening, len(timeline))
	later := map[string]*Happening{} // the start of a node that comes next
	for i := range timeline {
		h := &all[i]
		h.OverviewHappening, h.Kind = timeline[i], kindOf(timeline[i].Action)
		if h.Action != nodeStart {
			continue
		}
		if next := later[h.Target]; next != nil && next.Reason != h.Reason {
			next.Kind, next.Before = "deploy", h.Reason
		}
		later[h.Target] = h
	}
	return all
}

// kindOf returns the kind of an action.
func kindOf(action string) string {
	switch object, _, _ := strings.Cut(action, "."); {
	case action == authorityAcquired:
		return "election"
	case action == "cluster.transfer":
		return "handover"
	case action == "node.drain", action == "node.resume", object == "worker":
		return "drain"
	case action == nodeStart:
		return "start"
	case object == "cluster", object == "node":
		return "member"
	case object == "operation":
		return "operation"
	}
	return "change"
}

// marksOf returns what happened since from as marks of a chart.
func marksOf(happenings []Happening, from time.Time) (marks []draw.Mark) {
	for i := range happenings {
		h := &happenings[i]
		if !h.At.After(from) {
			continue
		}
		what := h.Action
		if h.Kind == "deploy" {
			what = "deploy"
		}
		words := []string{h.At.UTC().Format(time.TimeOnly) + " UTC", what, h.Queue, h.Target, h.Actor}
		if h.Action == nodeStart {
			words = append(words[:4], h.Reason)
		}
		marks = append(marks, draw.Mark{At: h.At, Kind: h.Kind, Label: format.Plain(strings.Join(strings.Fields(strings.Join(words, " ")), " "), format.CutLine)})
	}
	return marks
}
