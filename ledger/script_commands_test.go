package ledger

import (
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// short parses the commands that are not the contract's:
//
//	lead <owner> until=<time>        renew until=<time>
//	bootstrap <lane identity>…
//	ingest <lane> <from>-<to> [lane=<identity>] [existing-queues] <record>…
//	     record: <job>:<queue>[/<function>][,prio=n,at=t,acc=t,max=n,unique=k/<t|start|end>,rate=k/t,debounce=k/t]
//	     or  <job>!<queue>,reason=<reason>
//	place <job>#<n>@<node>/<incarnation>:<channel>…
//	settle <job>#<n>=<done|retry|give-back|loss|dead>[,at=t,reason=reason,value=json,by=<node>/<incarnation>]…
//	published events=n results=n dead=n message=<first>:<seq>
//	cancel|cancel-with-queue|remove <job>   retry <job> [n=n] [keep=1] [relocated=seq]
//	set <job> [prio=n] [at=t]
//	hold <holder> until=<time>
//	reclaim <lane|relocated> <below> as-of=<index>   relocate <job>:<lane|relocated>@<from>-<to>…
//	add <queue> [limit=n]   change <queue> [limit=n] [<setting>=<value>…]   drop|pause|resume|pause-idle <queue>
//	move <job>#<n>@<node>/<incarnation>:<channel>
//	observe <event> <subject> <detail>
//	worker-events <node>/<incarnation> <first> <worker>-<reason>|<worker>+<recovery>…
//	cron <entry> <expression> next=t [queue=q no-overlap=y catchup=y declared=y replace=y]
//	remove-cron <entry> [declared=y]   pause-cron <entry>   resume-cron <entry> next=t
//	tick <entry>@<time> rev=n [next=t missed=n no-job=y]
//	advance-replay <number> <lane>@<to>… [last=job missing=<lane>@<from>-<to> mismatch=<lane>@<from>-<to>]
//	act <action> [queue=q job=j target=t]
//	retention|declare-retention <setting>=<value>…     value: a number, or a duration; 0 resets
//	schema <queue>/<function> <text> [warn=y]   remove-schema <queue>/<function>
//	operate|operation|step           see [script.operation]
//	pass                             an entry without a command
//
// by=<name>/<door>/<reason> after a command is who asked for it.
func (s *script) short(words []string) Command {
	c := s.byVerb(words[0], words[1:])
	asked, ok := c.(Askable)
	if parts := strings.SplitN(option(words, "by"), "/", 3); ok && len(parts) == 3 {
		asked.SetActor(Actor{Name: parts[0], Door: Door(parts[1]), Reason: parts[2]})
	}
	return c
}

// byVerb parses a command without who asked for it.
func (s *script) byVerb(verb string, words []string) Command {
	switch verb {
	case "pass":
		return nil
	case "lead":
		return &Lead{Owner: words[0], Until: s.time(option(words, "until")), Level: Level}
	case "renew":
		return &Renew{Until: s.time(option(words, "until"))}
	case "bootstrap":
		return &Bootstrap{Secret: []byte("secret"), Lanes: words}
	case "ingest":
		return s.ingest(words)
	case "place":
		c := &Place{}
		for _, word := range words {
			c.Placements = append(c.Placements, s.placement(word))
		}
		return c
	case "settle":
		c := &Settle{}
		for _, word := range words {
			c.Settlements = append(c.Settlements, s.settlement(word))
		}
		return c
	case "published":
		return s.markPublished(words)
	case "advance-replay":
		return s.advanceReplay(words)
	case "worker-events":
		return s.workerEvents(words)
	case "cron", "remove-cron", "pause-cron", "resume-cron", "tick":
		return s.cron(verb, words)
	case "schema", "remove-schema":
		return s.schema(verb, words)
	case "operate", "operation", "step":
		return s.operation(verb, words)
	case "observe":
		for k := range eventForms {
			if eventForms[k].tag == words[0] {
				return &Observe{Observations: []Observation{{EventKind(k), words[1], words[2]}}}
			}
		}
	}
	return s.shortByName(verb, words)
}

// shortByName parses the commands about one queue or one job.
func (s *script) shortByName(verb string, words []string) Command {
	switch verb {
	case "add":
		config := job.DefaultQueueConfig
		if limit := option(words, "limit"); limit != "" {
			config.Limit = uint32(s.number(limit))
		}
		return &AddQueue{ID: s.id("queue " + words[0]), Name: words[0], Config: config}
	case "change":
		change := job.QueueChange{Retention: s.retention(words[1:])}
		if limit := option(words, "limit"); limit != "" {
			change.Limit = new(uint32(s.number(limit)))
		}
		return &ChangeQueue{Name: words[0], Change: change}
	case "retention", "declare-retention":
		return &SetRetention{Declared: verb != "retention", Settings: s.retention(words)}
	case "drop":
		return &RemoveQueue{Name: words[0]}
	case "pause", "resume", "pause-idle":
		return &PauseQueue{Name: words[0], Paused: verb != "resume", OnlyIfIdle: verb == "pause-idle"}
	case "cancel", "cancel-with-queue":
		return &CancelJob{Job: s.id(words[0]), Reason: "asked", QueueGone: verb == "cancel-with-queue"}
	case "set":
		c := &ChangeJob{Job: s.id(words[0])}
		if priority := option(words, "prio"); priority != "" {
			c.Priority = new(uint8(s.number(priority)))
		}
		if at := option(words, "at"); at != "" {
			c.RunAt = s.time(at)
		}
		return c
	case "remove":
		return &RemoveJob{Job: s.id(words[0])}
	case "retry":
		c := &RetryJob{Job: s.id(words[0]), KeepAttempts: option(words, "keep") != ""}
		if n := option(words, "n"); n != "" {
			c.N = uint32(s.number(n))
		}
		if seq := option(words, "relocated"); seq != "" {
			c.Relocated = s.number(seq)
		}
		return c
	case "reclaim":
		return &Reclaim{Lane: s.lane(words[0]), Below: s.number(words[1]), AsOf: s.number(option(words, "as-of"))}
	case "hold":
		return &Hold{Holder: words[0], Until: s.time(option(words, "until"))}
	case "relocate":
		c := &Relocate{}
		for _, word := range words {
			name, moved, _ := strings.Cut(word, ":")
			lane, seqs, _ := strings.Cut(moved, "@")
			from, to, _ := strings.Cut(seqs, "-")
			c.Records = append(c.Records, RelocatedRecord{s.id(name), job.Position{Lane: s.lane(lane), Seq: s.number(from)}, s.number(to)})
		}
		return c
	case "act":
		c := &RecordAct{Action: words[0], Queue: option(words, "queue"), Target: option(words, "target")}
		if name := option(words, "job"); name != "" {
			c.Job = s.id(name)
		}
		return c
	case "move":
		p := s.placement(words[0])
		return &MoveDispatch{Job: p.Job, N: p.N, Node: p.Node, Incarnation: p.Incarnation, Channel: p.Channel}
	}
	s.t.Fatalf("unknown command: %s %v", verb, words)
	return nil
}

func (s *script) schema(verb string, words []string) Command {
	queue, function, _ := strings.Cut(words[0], "/")
	if verb == "remove-schema" {
		return &RemoveSchema{Queue: queue, Function: function}
	}
	return &SetSchema{Queue: queue, Function: function, Text: []byte(words[1]), Warn: option(words, "warn") != ""}
}

// lane parses the number of a lane, or "relocated".
func (s *script) lane(word string) uint8 {
	if word == "relocated" {
		return job.RelocatedLane
	}
	return uint8(s.number(word))
}

func (s *script) ingest(words []string) Command {
	from, to, _ := strings.Cut(words[1], "-")
	c := &Ingest{
		Lane: uint8(s.number(words[0])), Identity: "L" + words[0],
		From: s.number(from), To: s.number(to), CreateQueues: true,
	}
	if lane := option(words, "lane"); lane != "" {
		c.Identity = lane
	}
	seq := c.From
	for _, word := range words[2:] {
		switch {
		case word == "existing-queues":
			c.CreateQueues = false
		case strings.HasPrefix(word, "lane="):
		case strings.Contains(word, "!"):
			seq++
			parts := strings.Split(word, ",")
			name, queue, _ := strings.Cut(parts[0], "!")
			c.Rejected = append(c.Rejected, Rejection{ID: s.id(name), Queue: queue, Seq: seq, Accepted: s.at.At, Reason: option(parts, "reason")})
		default:
			seq++
			c.Jobs = append(c.Jobs, s.record(word, job.Position{Lane: c.Lane, Seq: seq}))
		}
	}
	return c
}

func (s *script) record(word string, pos job.Position) job.Job {
	parts := strings.Split(word, ",")
	name, rest, _ := strings.Cut(parts[0], ":")
	queue, function, _ := strings.Cut(rest, "/")
	j := job.Job{
		ID: s.id(name), Queue: queue, Function: function, Position: pos,
		Accepted: s.at.At, Priority: job.DefaultPriority,
	}
	if at := option(parts, "at"); at != "" {
		j.RunAt = s.time(at)
	}
	if at := option(parts, "expires"); at != "" {
		j.Expires = s.time(at)
	}
	if name := option(parts, "uses"); name != "" {
		j.Limits = []job.LimitUse{{Limit: name}}
	}
	if at := option(parts, "acc"); at != "" {
		j.Accepted = s.time(at)
	}
	if n := option(parts, "prio"); n != "" {
		j.Priority = uint8(s.number(n))
	}
	if n := option(parts, "max"); n != "" {
		j.MaxAttempts = uint32(s.number(n))
	}
	if g := (job.Guards{Unique: s.guard(parts, "unique"), Rate: s.guard(parts, "rate"), Debounce: s.guard(parts, "debounce")}); g != (job.Guards{}) {
		j.Guards = &g
	}
	return j
}

// guard parses <kind>=<key>/<time>.
func (s *script) guard(parts []string, kind string) (g job.Guard) {
	if key, held, ok := strings.Cut(option(parts, kind), "/"); ok {
		copy(g.Key[:], kind[:1]+key)
		switch held {
		case "start":
			g.Until = job.UntilStart
		case "end":
			g.Until = job.UntilEnd
		default:
			g.TTL = s.time(held).Sub(scriptStart)
		}
	}
	return g
}

func (s *script) placement(word string) Placement {
	dispatch, rest, _ := strings.Cut(word, "@")
	id, n := s.dispatch(dispatch)
	node, channel, _ := strings.Cut(rest, ":")
	node, incarnation, _ := strings.Cut(node, "/")
	return Placement{Job: id, N: n, Node: node, Incarnation: s.number(incarnation), Channel: channel}
}

func (s *script) settlement(word string) Settlement {
	parts := strings.Split(word, ",")
	dispatch, verdict, _ := strings.Cut(parts[0], "=")
	id, n := s.dispatch(dispatch)
	e := Settlement{Job: id, N: n, Reason: option(parts, "reason"), Loss: verdict == "loss"}
	e.Next = map[string]job.Next{"done": job.NextDone, "retry": job.NextRetry, "give-back": job.NextGiveBack, "loss": job.NextGiveBack, "dead": job.NextDead}[verdict]
	if at := option(parts, "at"); at != "" {
		e.At = s.time(at)
	}
	if v := option(parts, "value"); v != "" {
		e.Result = job.Value{Data: []byte(v)}
	}
	if by := option(parts, "by"); by != "" {
		node, incarnation, _ := strings.Cut(by, "/")
		e.Node, e.Incarnation = node, s.number(incarnation)
	}
	return e
}

func (s *script) markPublished(words []string) Command {
	c := &MarkPublished{}
	for _, word := range words {
		key, v, _ := strings.Cut(word, "=")
		switch key {
		case "events":
			c.Events = s.number(v)
		case "results":
			c.Results = s.number(v)
		case "dead":
			c.DeadLetters = s.number(v)
		case "message":
			first, seq, _ := strings.Cut(v, ":")
			c.Messages = append(c.Messages, ResultMessage{First: s.number(first), Seq: s.number(seq)})
		}
	}
	return c
}

func (s *script) advanceReplay(words []string) Command {
	c := &AdvanceReplay{Number: s.number(words[0])}
	for _, word := range words[1:] {
		key, rest, _ := strings.Cut(word, "=")
		lane, seqs, _ := strings.Cut(rest, "@")
		from, to, _ := strings.Cut(seqs, "-")
		switch key {
		case "last":
			c.Last = s.id(rest)
		case "missing":
			c.Damage = append(c.Damage, ReplayDamage{uint8(s.number(lane)), s.number(from), s.number(to), DamageMissing})
		case "mismatch":
			c.Damage = append(c.Damage, ReplayDamage{uint8(s.number(lane)), s.number(from), s.number(to), DamageMismatch})
		default:
			lane, to, _ := strings.Cut(word, "@")
			c.Lanes = append(c.Lanes, ReplayProgress{uint8(s.number(lane)), s.number(to)})
		}
	}
	return c
}

func (s *script) workerEvents(words []string) Command {
	node, incarnation, _ := strings.Cut(words[0], "/")
	c := &RecordWorkerEvents{Node: node, Incarnation: s.number(incarnation), First: s.number(words[1])}
	for _, word := range words[2:] {
		worker, recovery, recovered := strings.Cut(word, "+")
		if recovered {
			c.Events = append(c.Events, job.WorkerEvent{Worker: worker, Detail: recovery})
			continue
		}
		worker, reason, _ := strings.Cut(word, "-")
		c.Events = append(c.Events, job.WorkerEvent{Worker: worker, Stalled: true, Detail: reason})
	}
	return c
}

// dispatch parses <job>#<n>.
func (s *script) dispatch(text string) (job.ID, uint32) {
	name, n, _ := strings.Cut(text, "#")
	return s.id(name), uint32(s.number(n))
}

// option returns the value of key=value among words, or "".
func option(words []string, key string) string {
	for _, word := range words {
		if v, ok := strings.CutPrefix(word, key+"="); ok {
			return v
		}
	}
	return ""
}

// stampAt returns a stamp for tests without a script.
func stampAt(index uint64, seconds int, epoch uint64) Stamp {
	return Stamp{Index: index, Term: 1, At: scriptStart.Add(time.Duration(seconds) * time.Second), Epoch: epoch}
}

// retention parses settings such as finished.age=1h, and ignores other words.
func (s *script) retention(words []string) (settings []job.RetentionSetting) {
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if !strings.Contains(name, ".") {
			continue
		}
		key, err := job.ParseRetentionKey(name, false)
		if err != nil {
			s.t.Fatal(err)
		}
		setting := job.RetentionSetting{Key: key}
		if d, err := time.ParseDuration(value); err == nil {
			setting.Value = int64(d)
		} else {
			setting.Value = int64(s.number(value))
		}
		settings = append(settings, setting)
	}
	return settings
}
