package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/scrub"
	"yardmaster/vigil"
	"yardmaster/web"
)

// What members ask each other about their copies of streams: verbCopy is a
// [scrub.Question], verbScrub asks for the last report.
const (
	verbCopy  = "copy"
	verbScrub = "scrub"
)

// ScrubConfig is how a node proves its copies of the yard's streams.
type ScrubConfig struct {
	// Every is how often all of them are read and compared with the other
	// members', 5s to 30 days. Default 1h.
	Every time.Duration `toml:"every"`
	// Rate is how many bytes a second are read for that, at least 1048576.
	// Default 33554432.
	Rate int64 `toml:"bytes_per_second"`
}

func (c *ScrubConfig) fill() {
	fill(&c.Every, time.Hour)
	fill(&c.Rate, 32<<20)
}

func (c *ScrubConfig) validate() error {
	if c.Every < 5*time.Second || c.Every > 30*24*time.Hour {
		return fmt.Errorf("scrub.every is %s; must be 5s to %s", c.Every, 30*24*time.Hour)
	}
	if c.Rate < 1<<20 {
		return fmt.Errorf("scrub.bytes_per_second is %d; must be at least %d", c.Rate, 1<<20)
	}
	return nil
}

// copies binds what a [scrub.Scrubber] needs to the rooms that have it.
type copies struct{ *Node }

func (y copies) Copies() ([]scrub.Copy, error) {
	own, err := y.messages.OwnCopies()
	all := make([]scrub.Copy, len(own))
	for i := range own {
		all[i] = scrub.Copy{Stream: own[i].Stream, First: own[i].First, Last: own[i].Last, Dense: own[i].Dense}
	}
	return all, err
}

func (y copies) Walk(stream string, from, to uint64, pace func(int) error, fn func(seq, sum uint64)) (int, error) {
	return y.messages.WalkCopy(stream, from, to, pace, fn)
}

func (y copies) Keeps(ctx context.Context, stream string, seq uint64) (bool, error) {
	return y.messages.Keeps(ctx, stream, seq)
}

func (y copies) Others() []string {
	return slices.DeleteFunc(y.memberNames(), func(name string) bool { return name == y.cfg.Node.Name })
}

func (y copies) Ask(ctx context.Context, member string, q scrub.Question) (a scrub.Answer, err error) {
	return a, y.askNode(ctx, member, verbCopy, q, &a)
}

func (n *Node) serveCopy(_ context.Context, payload []byte) ([]byte, error) {
	var q scrub.Question
	if err := json.Unmarshal(payload, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	a, err := n.scrubber.Serve(q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(a)
}

func (n *Node) serveScrub(context.Context, []byte) ([]byte, error) {
	return json.Marshal(n.memberScrub())
}

// memberScrub is what a member found, and what it makes anew.
type memberScrub struct {
	scrub.Report
	Rebuild *RebuildStatus `json:"rebuild,omitempty"`
}

func (n *Node) memberScrub() memberScrub {
	return memberScrub{n.scrubber.Report(), n.rebuilds.status()}
}

// copyAilments are what is wrong with this node's copies, unopened among them.
func (n *Node) copyAilments(unopened []string) (ailments []vigil.Ailment) {
	for _, stream := range unopened {
		ailments = append(ailments, vigil.Ailment{Kind: vigil.Copy, Text: unopenedText(n.cfg.Node.Name, stream)})
	}
	for _, r := range n.scrubber.Wrong() {
		for _, f := range r.Findings {
			ailments = append(ailments, vigil.Ailment{Kind: vigil.Copy, Text: copyText(n.cfg.Node.Name, r.Stream, &f)})
		}
	}
	return ailments
}

// unopenedText says that a node has no part in a stream, and what to do.
func unopenedText(node, stream string) string {
	return fmt.Sprintf("its copy of %s cannot be opened: what was agreed on about it is damaged on the disk; run 'yardmaster cluster rebuild %s --node %s'", stream, stream, node)
}

// copyText says what was found in a node's copy of a stream, and what to do.
func copyText(node, stream string, f *scrub.Finding) string {
	with, rebuild := strings.Join(f.With, " and "), fmt.Sprintf("run 'yardmaster cluster rebuild %s --node %s'", stream, node)
	messages := fmt.Sprintf("%d messages (%s)", f.Count, f.Which)
	if f.Count == 1 {
		messages = "message " + f.Which
	}
	switch f.Kind {
	case scrub.Lacks:
		return fmt.Sprintf("its copy of %s lacks, or cannot read, what others have: %s; %s", stream, messages, rebuild)
	case scrub.Differs:
		return fmt.Sprintf("its copy of %s is not what %s have: %s; %s", stream, with, messages, rebuild)
	case scrub.Split:
		return fmt.Sprintf("its copy of %s and that of %s differ, and no third says which is right: %s; start the other members", stream, with, messages)
	}
	return fmt.Sprintf("its copy of %s lacks, or cannot read, what no copy that was heard has: %s; start the other members, or see docs/self-protection.md", stream, messages)
}

// ScrubStatus is what this node found when it last read its copies.
type ScrubStatus struct {
	Ended    time.Time `json:"ended"` // zero: not yet
	TookMS   int64     `json:"took_ms"`
	Copies   int       `json:"copies"`   // of streams
	Messages uint64    `json:"messages"` // that were read in them
	Wrong    int       `json:"wrong"`    // messages that are not what they should be
}

func (n *Node) scrubStatus() ScrubStatus {
	report := n.scrubber.Report()
	s := ScrubStatus{Ended: report.Ended, TookMS: report.Took, Copies: len(report.Results)}
	for i := range report.Results {
		s.Messages += report.Results[i].Messages
		s.Wrong += wrongIn(&report.Results[i])
	}
	return s
}

func wrongIn(r *scrub.Result) (messages int) {
	for _, f := range r.Findings {
		messages += f.Count
	}
	return messages
}

func (n *Node) gatherScrub(emit web.Emit) {
	report := n.scrubber.Report()
	if !report.Ended.IsZero() {
		emit("yard_scrub_ended_timestamp_seconds", float64(report.Ended.Unix()))
		emit("yard_scrub_seconds", float64(report.Took)/1000)
	}
	for i := range report.Results {
		r := &report.Results[i]
		emit("yard_scrub_messages", float64(r.Messages), r.Stream)
		emit("yard_scrub_wrong_messages", float64(wrongIn(r)), r.Stream)
	}
}

// scrubAnswer is what all members found that were heard.
type scrubAnswer struct {
	Reports []memberScrub `json:"reports"`
	Unheard []string      `json:"unheard,omitempty"`
}

// scrubAsk is how long a member may take to tell what it found.
const scrubAsk = time.Second

func (n *Node) handleScrub(ctx context.Context, _ *cluster.Request) (any, error) {
	answer := scrubAnswer{Reports: []memberScrub{n.memberScrub()}}
	for _, member := range (copies{n}).Others() {
		var report memberScrub
		asking, cancel := context.WithTimeout(ctx, scrubAsk)
		err := n.askNode(asking, member, verbScrub, struct{}{}, &report)
		cancel()
		if err != nil {
			answer.Unheard = append(answer.Unheard, member)
			continue
		}
		answer.Reports = append(answer.Reports, report)
	}
	slices.SortFunc(answer.Reports, func(a, b memberScrub) int { return strings.Compare(a.Node, b.Node) })
	return answer, nil
}
