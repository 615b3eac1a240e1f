package dialogue

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"yardmaster/edge/overhop"
)

// World is what a conversation is played against.
type World struct {
	// Dial connects the speaker of that name.
	Dial func(speaker string) (Conn, error)
	// Settle returns when the server rests. Nil: it cannot be told, and what is
	// wanted is waited for, at most Patience.
	Settle   func()
	Patience time.Duration
	// Unique ends the names that are made up, so that they are fresh.
	Unique string
	// Do does what a yard line says.
	Do func(words []string) error
	// Known returns when every node knows a new queue. Nil: nothing to wait for.
	Known func(queue string) error
}

// Exchange is a request and its answer, or something a server pushed.
type Exchange struct {
	Name   string      // of the request; "push"
	State  string      // of the speaker when it asked: fresh, helloed, registered, plain (registered, did not offer the extension)
	P      overhop.Raw // the request's payload
	Answer string      // OK, ERR, …
	Heard  overhop.Raw // the answer's or the push's payload
}

// Play plays a conversation and gives what was exchanged. The error names file
// and line.
func (s *Script) Play(w World) (exchanged []Exchange, err error) {
	p := &play{script: s, world: w, scene: scene{}, speakers: map[string]*speaker{}}
	defer func() {
		for _, sp := range p.all {
			sp.nc.Close()
		}
	}()
	for _, st := range s.steps {
		if err := p.step(st); err != nil {
			return nil, fmt.Errorf("%s: %w", s.at(st), err)
		}
	}
	for _, sp := range p.all {
		if err := p.nothing(sp); err != nil {
			return nil, fmt.Errorf("%s: at the end %w", s.file, err)
		}
	}
	return p.exchanged, nil
}

type play struct {
	script    *Script
	world     World
	scene     scene
	speakers  map[string]*speaker
	all       []*speaker
	exchanged []Exchange
}

func (p *play) step(st step) error {
	if st.who == "" {
		return p.prepare(st)
	}
	sp := p.speakers[st.who]
	switch st.verb {
	case "connects", "hello", "registers":
		sp, err := p.connect(st.who)
		if err != nil || st.verb == "connects" {
			return err
		}
		return p.enter(sp, st.verb, st.rest == overhop.Delivery)
	}
	if sp == nil {
		return fmt.Errorf("%s has not connected", st.who)
	}
	switch st.verb {
	case "->", "?>":
		m, err := p.parse(st.rest)
		if err != nil {
			return err
		}
		sp.insists = st.verb == "?>"
		p.say(sp, m)
		return nil
	case "<-":
		return p.hear(sp, st.rest)
	case "bytes":
		b, err := unhex(st.rest)
		if err != nil {
			return err
		}
		sp.write([]byte(b))
		return nil
	case "gathers":
		sp.gathers = true
		return nil
	case "sends":
		return sp.send(st.rest)
	case "quiet":
		return p.quiet(sp)
	case "closed":
		return p.closed(sp)
	}
	delete(p.speakers, st.who)
	return sp.nc.Close() // leaves
}

// prepare does a line without a speaker.
func (p *play) prepare(st step) error {
	words := strings.Fields(st.rest)
	if len(words) == 0 {
		return fmt.Errorf("%s what?", st.verb)
	}
	switch st.verb {
	case "name", "queue":
		name := words[0] + p.world.Unique
		p.scene[words[0]] = overhop.AppendStr(nil, name)
		if st.verb == "name" {
			return nil
		}
		return p.addQueue(name, strings.TrimSpace(strings.TrimPrefix(st.rest, words[0])))
	case "after":
		d, err := time.ParseDuration(st.rest)
		if err != nil {
			return err
		}
		p.world.Settle()
		time.Sleep(d) // of a clock that the world holds
		p.world.Settle()
		return nil
	case "violation":
		for _, line := range variants(st.rest) {
			if err := p.violate(line); err != nil {
				return fmt.Errorf("%s: %w", line, err)
			}
		}
		return nil
	}
	for i, word := range words {
		if name, ok := strings.CutPrefix(word, "$"); ok {
			words[i], _ = p.scene[name].Str()
		}
	}
	return p.world.Do(words)
}

func (p *play) addQueue(name, config string) error {
	if config == "" {
		config = "{}"
	}
	sp, err := p.connect("prepares")
	if err != nil {
		return err
	}
	if err := p.enter(sp, "registers", false); err != nil {
		return err
	}
	m, err := p.parse(fmt.Sprintf("ADDQUEUE {name: %q, config: %s}", name, config))
	if err != nil {
		return err
	}
	p.say(sp, m)
	if err := p.hear(sp, "OK {qid: uuid}"); err != nil {
		return err
	}
	sp.nc.Close()
	if p.world.Known == nil {
		return nil
	}
	return p.world.Known(name)
}

// violate is a whole conversation: what it says is refused and ends it.
func (p *play) violate(rest string) error {
	rest, plain := strings.CutPrefix(rest, "plain ") // of one that did not offer the extension
	sp, err := p.connect("violates")
	if err != nil {
		return err
	}
	if err := p.enter(sp, "registers", !plain); err != nil {
		return err
	}
	m, err := p.parse(rest)
	if err != nil {
		return err
	}
	p.say(sp, m)
	if err := p.hear(sp, "ERR PROTOCOL_VIOLATION"); err != nil {
		return err
	}
	return p.closed(sp)
}

// enter says HELLO and, if asked to, REGISTER.
func (p *play) enter(sp *speaker, how string, offer bool) error {
	says, hears := []string{"HELLO {}"}, []string{"HI {}"}
	if offer {
		says[0] = fmt.Sprintf("HELLO {ext: [%q]}", overhop.Delivery)
		hears[0] = fmt.Sprintf("HI {ext: [%q], node: str, max_envelope_size_bytes: int}", overhop.Delivery)
	}
	if how == "registers" {
		says, hears = append(says, "REGISTER {}"), append(hears, "OK {wid: $"+sp.name+"_wid}")
		delete(p.scene, sp.name+"_wid")
	}
	for i := range says {
		m, err := p.parse(says[i])
		if err == nil {
			p.say(sp, m)
			err = p.hear(sp, hears[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// message is a request as a line has it.
type message struct {
	name, rid string
	t         int64
	p         overhop.Raw
}

// parse reads "NAME @rid {…}", of which the name may be a number.
func (p *play) parse(text string) (m message, err error) {
	m.name, text, _ = strings.Cut(text, " ")
	if m.t = numbers[m.name]; m.t == 0 {
		if _, err := fmt.Sscanf(m.name, "%d", &m.t); err != nil {
			return m, fmt.Errorf("%q is no message", m.name)
		}
	}
	text = strings.TrimSpace(text)
	if rid, ok := strings.CutPrefix(text, "@"); ok {
		m.rid, text, _ = strings.Cut(rid, " ")
	}
	if text == "" {
		text = "{}"
	}
	v, err := parseValue(text)
	if err == nil {
		m.p, err = p.scene.encode(nil, v)
	}
	return m, err
}

func (p *play) say(sp *speaker, m message) {
	if m.rid == "" {
		sp.count++
		m.rid = fmt.Sprintf("%d", sp.count)
	}
	sp.pending = append(sp.pending, asked{message: m, state: sp.state})
	sp.write(overhop.AppendMessage(nil, m.t, m.rid, m.p))
}

// hear wants "NAME {…}" or "ERR CODE {…}" next. If the speaker insists, another
// answer makes it ask again.
func (p *play) hear(sp *speaker, rest string) error {
	name, text, _ := strings.Cut(rest, " ")
	t := numbers[name]
	if t == 0 {
		return fmt.Errorf("%q is no message", name)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		text = "{}"
	}
	if name == "ERR" {
		code, details, some := strings.Cut(text, " ")
		text = fmt.Sprintf("{code: %q, msg: str}", code)
		if some {
			text = fmt.Sprintf("{code: %q, details: %s, msg: str}", code, details)
		}
	}
	v, err := parseValue(text)
	if err != nil {
		return err
	}
	insists := sp.insists && p.world.Settle == nil
	sp.insists = false
	deadline := time.Now().Add(p.world.Patience)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		again, err := p.hearOne(sp, t, rest, v)
		if err == nil || !insists || again == nil || time.Now().After(deadline) {
			return err
		}
		<-look.C
		p.say(sp, *again)
	}
}

// hearOne takes one frame and gives the request it answers, if any.
func (p *play) hearOne(sp *speaker, t int64, want string, v value) (*message, error) {
	e, err := sp.next(&p.world, isPush(t))
	if err != nil {
		return nil, fmt.Errorf("%s %w; want %s", sp.name, err, want)
	}
	x := Exchange{Name: "push", State: sp.state, Answer: names[e.T], Heard: e.P}
	rid, request := overhop.PushRID, (*message)(nil)
	if !isPush(e.T) && len(sp.pending) > 0 {
		was := sp.pending[0]
		sp.pending = sp.pending[1:]
		rid, request = was.rid, &was.message
		request.rid = ""
		x.Name, x.State, x.P = was.name, was.state, was.p
	}
	if e.T != t || e.RID != rid {
		return request, fmt.Errorf("%s got %s (t=%d) rid %q %s; want rid %q, %s", sp.name, names[e.T], e.T, e.RID, show(e.P), rid, want)
	}
	if err := p.scene.match(v, e.P); err != nil {
		return request, fmt.Errorf("%s got %s %s\n\tpayload: %w; want %s", sp.name, names[e.T], show(e.P), err, want)
	}
	sp.learn(x)
	p.exchanged = append(p.exchanged, x)
	return request, nil
}

var errOpen = errors.New("connection is still open")
