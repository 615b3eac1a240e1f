package ledger

import (
	"strings"
	"time"

	"yardmaster/job"
)

// short reads the yard's own commands:
//
//	lead <owner> until=<time>        renew until=<time>
//	found <lane identity>…
//	fold <lane> <from>-<to> [lane=<identity>] [known] <record>…
//	     record: <job>:<queue>[/<function>][,prio=n,at=t,acc=t,max=n,unique=k/t,rate=k/t,debounce=k/t]
//	     or  <job>!<queue>,why=<reason>
//	place <job>#<n>@<node>/<incarnation>:<channel>…
//	settle <job>#<n>=<done|again|back|loss|dead>[,at=t,why=reason,value=json,by=<node>/<incarnation>]…
//	told events=n results=n dead=n message=<first>:<seq>
//	add <queue> [limit=n]   drop|pause|resume|pause-idle <queue>
//	cancel|cancel-with-queue|remove <job>   retry <job> [n=n] [keep=1]
//	move <job>#<n>@<node>/<incarnation>:<channel>
//	observe <event> <subject> <detail>
//	notes <node>/<incarnation> <first> <worker>-<reason>|<worker>+<recovery>…
//	cron <entry> <expression> next=t [queue=q alone=y catchup=y declared=y replace=y]
//	uncron <entry> [declared=y]   halt <entry>   go <entry> next=t
//	tick <entry>@<time> rev=n [next=t missed=n mute=y]
//	reread <number> <lane>@<to>… [last=job missing=<lane>@<from>-<to> strange=<lane>@<from>-<to>]
//	pass                             an entry without a command
func (s *script) short(words []string) Command {
	verb, words := words[0], words[1:]
	switch verb {
	case "pass":
		return nil
	case "lead":
		return &Lead{Owner: words[0], Until: s.time(value(words, "until"))}
	case "renew":
		return &Renew{Until: s.time(value(words, "until"))}
	case "found":
		return &Found{Secret: []byte("secret"), Lanes: words}
	case "fold":
		return s.fold(words)
	case "place":
		c := &Place{}
		for _, word := range words {
			c.Placements = append(c.Placements, s.placement(word))
		}
		return c
	case "settle":
		c := &Settle{}
		for _, word := range words {
			c.Ends = append(c.Ends, s.end(word))
		}
		return c
	case "told":
		return s.told(words)
	case "reread":
		return s.reread(words)
	case "notes":
		return s.notes(words)
	case "cron", "uncron", "halt", "go", "tick":
		return s.cron(verb, words)
	case "observe":
		for k := range eventForms {
			if eventForms[k].tag == words[0] {
				return &Observe{Observations: []Observation{{EventKind(k), words[1], words[2]}}}
			}
		}
	}
	return s.shortByName(verb, words)
}

// shortByName reads the commands about one queue or one job.
func (s *script) shortByName(verb string, words []string) Command {
	switch verb {
	case "add":
		config := job.DefaultQueueConfig
		if limit := value(words, "limit"); limit != "" {
			config.Limit = uint32(s.number(limit))
		}
		return &AddQueue{ID: s.id("queue " + words[0]), Name: words[0], Config: config}
	case "drop":
		return &RemoveQueue{Name: words[0]}
	case "pause", "resume", "pause-idle":
		return &PauseQueue{Name: words[0], Paused: verb != "resume", Idle: verb == "pause-idle"}
	case "cancel", "cancel-with-queue":
		return &CancelJob{Job: s.id(words[0]), Reason: "asked", QueueGone: verb == "cancel-with-queue"}
	case "remove":
		return &RemoveJob{Job: s.id(words[0])}
	case "retry":
		c := &RetryJob{Job: s.id(words[0]), Keep: value(words, "keep") != ""}
		if n := value(words, "n"); n != "" {
			c.N = uint32(s.number(n))
		}
		return c
	case "move":
		p := s.placement(words[0])
		return &MoveDispatch{Job: p.Job, N: p.N, Node: p.Node, Incarnation: p.Incarnation, Channel: p.Channel}
	}
	s.t.Fatalf("no such command: %s %v", verb, words)
	return nil
}

func (s *script) fold(words []string) Command {
	from, to, _ := strings.Cut(words[1], "-")
	c := &Fold{
		Lane: uint8(s.number(words[0])), Identity: "L" + words[0],
		From: s.number(from), To: s.number(to), CreateQueues: true,
	}
	if lane := value(words, "lane"); lane != "" {
		c.Identity = lane
	}
	seq := c.From
	for _, word := range words[2:] {
		switch {
		case word == "known":
			c.CreateQueues = false
		case strings.HasPrefix(word, "lane="):
		case strings.Contains(word, "!"):
			seq++
			parts := strings.Split(word, ",")
			name, queue, _ := strings.Cut(parts[0], "!")
			c.Rejected = append(c.Rejected, Rejection{ID: s.id(name), Queue: queue, Seq: seq, Accepted: s.at.At, Reason: value(parts, "why")})
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
	if at := value(parts, "at"); at != "" {
		j.RunAt = s.time(at)
	}
	if at := value(parts, "acc"); at != "" {
		j.Accepted = s.time(at)
	}
	if n := value(parts, "prio"); n != "" {
		j.Priority = uint8(s.number(n))
	}
	if n := value(parts, "max"); n != "" {
		j.MaxAttempts = uint32(s.number(n))
	}
	if g := (job.Guards{Unique: s.guard(parts, "unique"), Rate: s.guard(parts, "rate"), Debounce: s.guard(parts, "debounce")}); g != (job.Guards{}) {
		j.Guards = &g
	}
	return j
}

// guard reads <kind>=<key>/<time>.
func (s *script) guard(parts []string, kind string) (g job.Guard) {
	if key, held, ok := strings.Cut(value(parts, kind), "/"); ok {
		copy(g.Key[:], kind[:1]+key)
		g.For = s.time(held).Sub(scriptStart)
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

func (s *script) end(word string) End {
	parts := strings.Split(word, ",")
	dispatch, verdict, _ := strings.Cut(parts[0], "=")
	id, n := s.dispatch(dispatch)
	e := End{Job: id, N: n, Reason: value(parts, "why"), Loss: verdict == "loss"}
	e.Next = map[string]job.Next{"done": job.Done, "again": job.Again, "back": job.Back, "loss": job.Back, "dead": job.Dead}[verdict]
	if at := value(parts, "at"); at != "" {
		e.At = s.time(at)
	}
	if v := value(parts, "value"); v != "" {
		e.Result = job.Value{Data: []byte(v)}
	}
	if by := value(parts, "by"); by != "" {
		node, incarnation, _ := strings.Cut(by, "/")
		e.Node, e.Incarnation = node, s.number(incarnation)
	}
	return e
}

func (s *script) told(words []string) Command {
	c := &Told{}
	for _, word := range words {
		key, v, _ := strings.Cut(word, "=")
		switch key {
		case "events":
			c.Events = s.number(v)
		case "results":
			c.Results = s.number(v)
		case "dead":
			c.Dead = s.number(v)
		case "message":
			first, seq, _ := strings.Cut(v, ":")
			c.Messages = append(c.Messages, ResultMessage{First: s.number(first), Seq: s.number(seq)})
		}
	}
	return c
}

func (s *script) reread(words []string) Command {
	c := &Reread{Number: s.number(words[0])}
	for _, word := range words[1:] {
		key, rest, _ := strings.Cut(word, "=")
		lane, seqs, _ := strings.Cut(rest, "@")
		from, to, _ := strings.Cut(seqs, "-")
		switch key {
		case "last":
			c.Last = s.id(rest)
		case "missing":
			c.Damage = append(c.Damage, ReplayDamage{uint8(s.number(lane)), s.number(from), s.number(to), DamageMissing})
		case "strange":
			c.Damage = append(c.Damage, ReplayDamage{uint8(s.number(lane)), s.number(from), s.number(to), DamageStrange})
		default:
			lane, to, _ := strings.Cut(word, "@")
			c.Lanes = append(c.Lanes, RereadLane{uint8(s.number(lane)), s.number(to)})
		}
	}
	return c
}

func (s *script) notes(words []string) Command {
	node, incarnation, _ := strings.Cut(words[0], "/")
	c := &NoteWorkers{Node: node, Incarnation: s.number(incarnation), First: s.number(words[1])}
	for _, word := range words[2:] {
		worker, recovery, recovered := strings.Cut(word, "+")
		if recovered {
			c.Notes = append(c.Notes, job.Note{Worker: worker, Detail: recovery})
			continue
		}
		worker, reason, _ := strings.Cut(word, "-")
		c.Notes = append(c.Notes, job.Note{Worker: worker, Stalled: true, Detail: reason})
	}
	return c
}

// dispatch reads <job>#<n>.
func (s *script) dispatch(text string) (job.ID, uint32) {
	name, n, _ := strings.Cut(text, "#")
	return s.id(name), uint32(s.number(n))
}

// value finds key=value among words; "" if it is not there.
func value(words []string, key string) string {
	for _, word := range words {
		if v, ok := strings.CutPrefix(word, key+"="); ok {
			return v
		}
	}
	return ""
}

// at is a stamp for tests that need no script.
func at(index uint64, seconds int, epoch uint64) Stamp {
	return Stamp{Index: index, Term: 1, At: scriptStart.Add(time.Duration(seconds) * time.Second), Epoch: epoch}
}
