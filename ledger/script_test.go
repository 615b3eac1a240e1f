package ledger

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/timeline"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the scripts in testdata with the present output")

// TestScripts runs the scripts in testdata. They consist of these lines:
//
//	# …         a comment
//	> command   a log entry; its results and events follow
//	& command   a further command of the same entry
//	? question  a query of the ledger; the answer follows
//
// A command is one of the contract's in JSON, or another one in the short form
// of script_commands_test.go. It may be followed by @<time> (since the script's
// start) and term=<n>, which stay in force, and by epoch=<n>. All other lines
// are the expected output, which -rewrite updates.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := newScript(t).run(string(want))
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
}

// scriptStart is the time to which a script's times are relative.
var scriptStart = time.Date(2026, 3, 19, 1, 0, 0, 0, time.UTC)

type script struct {
	t      *testing.T
	ledger *Ledger
	at     Stamp
	events uint64            // number of the last event written
	names  map[job.ID]string // names of jobs by id
	fold   *timeline.State   // of the events since the ledger had a level; nil before
	out    strings.Builder
}

func newScript(t *testing.T) *script {
	return &script{t: t, ledger: New(), at: Stamp{At: scriptStart, Term: 1}, names: make(map[job.ID]string)}
}

// run executes a script and returns it with its actual output.
func (s *script) run(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		switch line := lines[i]; {
		case line == "" || line[0] == '#':
			fmt.Fprintln(&s.out, line)
		case line[0] == '?':
			fmt.Fprintln(&s.out, line)
			s.ask(strings.Fields(line[1:]))
		case line[0] == '>':
			entry := []string{line}
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "&") {
				i++
				entry = append(entry, lines[i])
			}
			s.apply(entry)
		}
	}
	return s.replaceIDs(s.out.String())
}

// replaceIDs replaces ids of jobs by their names.
func (s *script) replaceIDs(text string) string {
	for id, name := range s.names {
		text = strings.ReplaceAll(text, id.String(), name)
	}
	return text
}

func (s *script) apply(entry []string) {
	s.at.Index++
	s.at.Epoch = s.ledger.Authority().Epoch
	var cmds []Command
	for _, line := range entry {
		fmt.Fprintln(&s.out, line)
		if c := s.command(strings.TrimSpace(line[1:])); c != nil {
			cmds = append(cmds, c)
		}
	}
	results := s.ledger.Apply(s.at, cmds)
	var events strings.Builder
	s.ledger.EventsAfter(s.events, func(number uint64, _ time.Time, e *Event) bool {
		if number != s.events+1 {
			s.t.Errorf("event %d follows event %d", number, s.events)
		}
		s.events = number
		fmt.Fprintf(&events, "%s\n", e.append(nil, 0, time.Time{}))
		return true
	})
	for _, r := range results {
		s.result(r, events.String())
	}
	s.out.WriteString(events.String())
	s.checkFold()
}

// checkFold compares the ledger with what its events say.
func (s *script) checkFold() {
	s.t.Helper()
	switch {
	case s.fold != nil:
		checkFold(s.t, s.ledger, s.fold)
	case s.ledger.Level() > 0:
		s.fold = stateOf(s.t, s.ledger.RecountedBase())
	}
}

// command parses one command and the stamp after it. It returns nil for an entry
// without a command.
func (s *script) command(text string) Command {
	body, rest := text, ""
	if strings.HasPrefix(text, "{") {
		end := strings.LastIndexByte(text, '}') + 1
		body, rest = text[:end], text[end:]
	}
	var words []string
	for _, word := range strings.Fields(body + " " + rest) {
		switch key, value, _ := strings.Cut(word, "="); {
		case rest == "" && body[0] == '{':
		case strings.HasPrefix(word, "@"):
			s.at.At = s.time(word[1:])
		case key == "term":
			s.at.Term = s.number(value)
		case key == "epoch":
			s.at.Epoch = s.number(value)
		default:
			words = append(words, word)
		}
	}
	if body == "" || body[0] != '{' {
		return s.short(words)
	}
	c, err := ParseCommand([]byte(body))
	if err != nil {
		fmt.Fprintf(&s.out, "error: %v\n", err)
		return nil
	}
	return c
}

var ingestedNames = [...]string{IngestedWaiting: "waiting", IngestedDelayed: "delayed", IngestedKnown: "known", IngestedRejected: "rejected",
	IngestedDuplicate: "duplicate", IngestedRateLimited: "rate-limited", IngestedDebounced: "debounced", IngestedKeysFull: "keys-full"}

// result writes the result of a command. An answer that is also one of the
// entry's events is not written again.
func (s *script) result(r Result, events string) {
	switch {
	case r.Err != nil:
		fmt.Fprintf(&s.out, "refused: %v\n", r.Err)
	case r.Event != nil:
		if line := string(r.Event.append(nil, 0, time.Time{})); !strings.Contains(events, line+"\n") {
			fmt.Fprintln(&s.out, "answer:", line)
		}
	case r.Ingested != nil:
		fmt.Fprint(&s.out, "ingested:")
		for _, f := range r.Ingested {
			fmt.Fprint(&s.out, " ", ingestedNames[f])
		}
		fmt.Fprintln(&s.out)
	case r.Placed != nil:
		fmt.Fprintln(&s.out, "placed:", strings.Trim(fmt.Sprint(r.Placed), "[]"))
	case r.Settled != nil:
		for _, e := range r.Settled {
			fmt.Fprintf(&s.out, "settled: stale=%t dup=%t %s", e.Stale, e.Duplicate, e.State)
			if e.State == job.Delayed {
				fmt.Fprintf(&s.out, " until %s", e.RunAt.Sub(scriptStart))
			}
			fmt.Fprintln(&s.out)
		}
	case r.State != job.New:
		fmt.Fprintln(&s.out, "state:", r.State)
	}
}

// ask answers a question about the ledger.
func (s *script) ask(words []string) {
	l := s.ledger
	switch words[0] {
	case "snapshot":
		s.print(l.Snapshot(s.snapshotContext(words[1:])))
	case "counts":
		fmt.Fprintf(&s.out, "%+v\n", l.counts)
	case "authority":
		a := l.Authority()
		fmt.Fprintf(&s.out, "%s %q epoch %d until %s expired %t\n", a.Owner, a.LeaseID, a.Epoch, a.Until.Sub(scriptStart), a.Expired)
	case "job":
		s.job(s.id(words[1]))
	case "waitlist":
		l.WaitingJobs(WaitlistID{Queue: words[1], Class: Class(strings.Join(words[2:], ""))}, func(w WaitingJob) bool {
			fmt.Fprintf(&s.out, "%s#%d attempt %d priority %d due %s redelivered %t\n",
				w.ID, w.N, w.Attempt, w.Priority, w.Due.Sub(scriptStart), w.Redelivered)
			return true
		})
	case "list":
		state, _ := job.ParseState(words[2])
		for _, v := range l.List(words[1], state, int(s.number(words[3])), int(s.number(words[4]))) {
			fmt.Fprintf(&s.out, "%s %s\n", v.ID, v.State)
		}
	case "active":
		l.ActiveDispatches(func(a ActiveDispatch) bool {
			fmt.Fprintf(&s.out, "%s#%d attempt %d on %s/%d by %s fence %d recalled %q\n",
				a.ID, a.N, a.Attempt, a.Node, a.Incarnation, a.Channel, a.Fence, a.Recalled)
			return true
		})
	case "queues":
		for _, q := range l.Queues() {
			fmt.Fprintf(&s.out, "%s limit %d paused %t headroom %d counts %v\n", q.Name, q.Config.Limit, q.Paused, l.Headroom(q.Name), q.Counts)
		}
	case "retention":
		r, f := s.ledger.Retention(), s.ledger.Finished()
		fmt.Fprintf(&s.out, "declared %v set %v in force %v; %d of %d records, %d own\n", r.Declared, r.Set, r.InForce(), f.Shared, f.MaxShared, f.Own)
	case "crons":
		s.crons()
	case "schemas":
		for _, schema := range s.ledger.Schemas().Sorted() {
			fmt.Fprintf(&s.out, "%s/%s version %d %s warn %t changed %s\n", schema.Queue, schema.Function, schema.Version, schema.Text, schema.Warn, FormatTime(schema.Changed))
		}
	case "operations":
		s.showOperations()
	default:
		s.askStreams(words)
	}
}

// askStreams answers a question about lanes, the outbox, guards or snapshots.
func (s *script) askStreams(words []string) {
	l := s.ledger
	switch words[0] {
	case "due":
		wait, ok := l.NextDue().Wait(l.Clock())
		fmt.Fprintln(&s.out, ok, l.Now().Add(wait).Sub(scriptStart))
	case "lanes":
		for i, ln := range l.Lanes() {
			fmt.Fprintln(&s.out, i, ln.Identity, ln.Cursor, ln.LastID)
		}
	case "needs":
		for i, n := range l.Copy().Needs(int(s.number(words[1]))) {
			fmt.Fprintf(&s.out, "%d: %d records, lowest %d, oldest", i, n.Count, n.Lowest())
			for _, r := range n.Oldest {
				fmt.Fprintf(&s.out, " %d of %s", r.Seq, r.Job)
				if r.Fixed {
					s.out.WriteString(" (fixed)")
				}
			}
			fmt.Fprintln(&s.out)
		}
	case "record":
		v, _, _ := l.Find(s.id(words[1]))
		fmt.Fprintf(&s.out, "%s; dead letter %d\n", v.Position, v.DeadLetter)
	case "outbox":
		fmt.Fprintf(&s.out, "published %d of %d events, %d results, %d dead letters; %d bytes unpublished; %d stale\n",
			l.PublishedEvents(), l.LastEvent(), l.LastResult(), l.LastDeadLetter(), l.OutboxBytes(), l.Stale())
	case "result":
		item, seq := l.FindResult(s.number(words[1]))
		if item != nil {
			fmt.Fprintf(&s.out, "%s#%d %s\n", item.Job, item.N, item.Value.Data)
		} else {
			fmt.Fprintln(&s.out, "message", seq)
		}
	case "dead":
		for _, d := range l.DeadLettersAfter(s.number(words[1])) {
			fmt.Fprintf(&s.out, "%d: %s#%d of %s at %d/%d after %d attempts: %s\n",
				d.Number, d.Job, d.N, d.Queue, d.Position.Lane, d.Position.Seq, d.Attempts, d.Reason)
		}
	case "replay":
		v := l.Snapshot(s.snapshotContext(words[1:]))
		last := "none"
		if v.Replay.LastReplayedEventID != nil {
			last = *v.Replay.LastReplayedEventID
		}
		fmt.Fprintf(&s.out, "request %d at %s, %d pending, last %s, ready %t %q\n",
			l.Replay().Number, *v.Replay.Cursor, v.Replay.PendingEvents, last, v.Readiness.Ready, v.Readiness.Reasons)
	case "keys":
		fmt.Fprintln(&s.out, l.HeldKeys(), "held")
	case "decision":
		lane, seq, _ := strings.Cut(words[1], "/")
		r, ok := l.Decision(job.Position{Lane: uint8(s.number(lane)), Seq: s.number(seq)})
		fmt.Fprintf(&s.out, "%t %s %s of %q retry after %s %s\n", ok, ingestedNames[r.Ingested], r.Job, r.Queue, r.RetryAfter, r.Reason)
	case "restore":
		var buf bytes.Buffer
		if err := l.Encode(&buf); err != nil {
			s.t.Fatal(err)
		}
		restored, err := Decode(&buf)
		if err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintln(&s.out, "same:", hash(s.t, restored) == hash(s.t, l))
		s.ledger = restored
	default:
		s.t.Fatalf("unknown question: %v", words)
	}
}

func (s *script) job(id job.ID) {
	v, result, ok := s.ledger.Find(id)
	if !ok {
		_, known := s.ledger.Known(id)
		fmt.Fprintf(&s.out, "unknown, seen before: %t\n", known)
		return
	}
	fmt.Fprintf(&s.out, "%s %s of %s: attempts %d dispatches %d losses %d", v.ID, v.State, v.Queue, v.Attempts, v.Dispatches, v.Losses)
	fmt.Fprintf(&s.out, " by %q on %q reason %q result %d run_at %s", v.Worker, v.Node, v.Reason, result, v.RunAt.Sub(scriptStart))
	if c := v.Cancellation; c != nil {
		fmt.Fprintf(&s.out, " cancelled at %s by %q over %q reason %q", c.At.Sub(scriptStart), c.Actor, c.Door, c.Reason)
	}
	fmt.Fprintln(&s.out)
}

func (s *script) snapshotContext(words []string) SnapshotContext {
	sc := SnapshotContext{Now: s.at.At}
	for _, word := range words {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "pending":
			sc.PendingEvents = s.number(value)
		case "oldest":
			sc.OldestPending = s.time(value).Sub(scriptStart)
		case "deferred":
			sc.Deferred = true
		case "reason":
			sc.Reasons = append(sc.Reasons, value)
		default:
			sc.Now = s.time(strings.TrimPrefix(word, "@"))
		}
	}
	return sc
}

func (s *script) print(v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		s.t.Fatal(err)
	}
	fmt.Fprintf(&s.out, "%s\n", text)
}

func (s *script) time(text string) time.Time {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatalf("time %q: %v", text, err)
	}
	return scriptStart.Add(d)
}

func (s *script) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.t.Fatalf("number %q: %v", text, err)
	}
	return n
}

// id returns the id of a named job, which is the same in every script.
// <entry>@<time> is the job of a tick.
func (s *script) id(name string) job.ID {
	if entry, at, ok := strings.Cut(name, "@"); ok {
		id := job.TickID(entry, s.time(at))
		s.names[id] = name
		return id
	}
	id, err := job.KeyID("script", name)
	if err != nil {
		s.t.Fatal(err)
	}
	s.names[id] = name
	return id
}

func hash(t testing.TB, l *Ledger) [32]byte {
	t.Helper()
	sum, err := l.Hash()
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
