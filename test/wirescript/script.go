package wirescript

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// Script is a parsed conversation.
type Script struct {
	Name   string   // of the file, without its extension
	Config []string // "key value" settings the server needs; empty if any server will do

	file  string
	steps []step
}

// step is one line: a client, a verb and its arguments.
type step struct {
	line               int
	client, verb, args string // client is empty in directives
}

// globalVerbs are the verbs of directives: lines without a client.
var globalVerbs = []string{"config", "queue", "name", "after", "yard", "violation"}

// clientVerbs are the verbs that follow a client.
var clientVerbs = []string{"connects", "hello", "registers", "->", "?>", "<-", "bytes", "gathers", "sends", "quiet", "closed", "leaves"}

// Load parses all conversations of a directory, in the order of their names.
func Load(dir string) ([]Script, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no conversations in %s (%v)", dir, err)
	}
	slices.Sort(files)
	var all []Script
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := Script{Name: strings.TrimSuffix(filepath.Base(file), ".txt"), file: filepath.Base(file)}
		if err := s.read(string(text)); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// read parses the lines of a conversation.
func (s *Script) read(text string) error {
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#") || strings.TrimSpace(line) == "" {
			continue
		}
		if n := len(s.steps); n > 0 && (line[0] == ' ' || line[0] == '\t') {
			s.steps[n-1].args += " " + strings.TrimSpace(line)
			continue
		}
		first, rest, _ := strings.Cut(line, " ")
		st := step{line: i + 1, client: first}
		st.verb, st.args, _ = strings.Cut(strings.TrimSpace(rest), " ")
		if slices.Contains(globalVerbs, first) {
			st = step{line: i + 1, verb: first, args: rest}
		} else if !slices.Contains(clientVerbs, st.verb) {
			return fmt.Errorf("%s:%d: unknown verb %q", s.file, i+1, st.verb)
		}
		st.args = strings.TrimSpace(st.args)
		if st.verb == "config" {
			s.Config = append(s.Config, st.args)
		} else {
			s.steps = append(s.steps, st)
		}
	}
	return nil
}

// NeedsEnv returns why the script needs an environment created for it, or "" if
// it can run against any cluster.
func (s *Script) NeedsEnv() string {
	if len(s.Config) > 0 {
		return "it has a config"
	}
	for _, st := range s.steps {
		if st.verb == "after" || st.verb == "yard" {
			return fmt.Sprintf("line %d uses %s", st.line, st.verb)
		}
	}
	return ""
}

// location returns the file and line of a step.
func (s *Script) location(st step) string { return fmt.Sprintf("%s:%d", s.file, st.line) }

// Env is the server and environment that a conversation runs against.
type Env struct {
	// Dial opens the connection of the client of that name.
	Dial func(client string) (net.Conn, error)
	// AwaitIdle blocks until the server is idle. If it is nil, idleness cannot
	// be observed, and expected messages are awaited for at most Timeout.
	AwaitIdle func()
	Timeout   time.Duration
	// Suffix is appended to generated names, to make them unique.
	Suffix string
	// Exec executes a command of the environment: a "yard" line.
	Exec func(words []string) error
	// AwaitQueue blocks until every node knows a new queue. It may be nil.
	AwaitQueue func(queue string) error
}

// Exchange is a request and its answer, or a push.
type Exchange struct {
	Name     string      // of the request, or "push"
	State    string      // of the client at the request: fresh, helloed, registered, plain (registered without the extension)
	Request  overhop.Raw // payload of the request
	Answer   string      // OK, ERR, …
	Response overhop.Raw // payload of the answer or the push
}

// Run runs the conversation and returns its exchanges. Errors name the file and
// the line.
func (s *Script) Run(env Env) (exchanged []Exchange, err error) {
	p := &scriptRun{script: s, env: env, vars: variables{}, clients: map[string]*client{}}
	defer func() {
		for _, c := range p.all {
			c.nc.Close()
		}
	}()
	for _, st := range s.steps {
		if err := p.step(st); err != nil {
			return nil, fmt.Errorf("%s: %w", s.location(st), err)
		}
	}
	for _, c := range p.all {
		if err := p.expectNothing(c); err != nil {
			return nil, fmt.Errorf("%s: at the end: %w", s.file, err)
		}
	}
	return p.exchanged, nil
}

// scriptRun is the state of one running conversation.
type scriptRun struct {
	script    *Script
	env       Env
	vars      variables
	clients   map[string]*client
	all       []*client
	exchanged []Exchange
}

// step executes one line.
func (r *scriptRun) step(st step) error {
	if st.client == "" {
		return r.runDirective(st)
	}
	c := r.clients[st.client]
	switch st.verb {
	case "connects", "hello", "registers":
		c, err := r.connect(st.client)
		if err != nil || st.verb == "connects" {
			return err
		}
		return r.handshake(c, st.verb, st.args == overhop.Delivery)
	}
	if c == nil {
		return fmt.Errorf("%s has not connected", st.client)
	}
	switch st.verb {
	case "->", "?>":
		m, err := r.parse(st.args)
		if err != nil {
			return err
		}
		c.retry = st.verb == "?>"
		r.sendRequest(c, m)
		return nil
	case "<-":
		return r.expect(c, st.args)
	case "bytes":
		b, err := parseHex(st.args)
		if err != nil {
			return err
		}
		c.write([]byte(b))
		return nil
	case "gathers":
		c.buffering = true
		return nil
	case "sends":
		return c.sendChunks(st.args)
	case "quiet":
		return r.expectQuiet(c)
	case "closed":
		return r.expectClosed(c)
	}
	delete(r.clients, st.client)
	return c.nc.Close() // "leaves"
}

// runDirective executes a line without a client.
func (r *scriptRun) runDirective(st step) error {
	words := strings.Fields(st.args)
	if len(words) == 0 {
		return fmt.Errorf("%s needs an argument", st.verb)
	}
	switch st.verb {
	case "name", "queue":
		name := words[0] + r.env.Suffix
		r.vars[words[0]] = overhop.AppendStr(nil, name)
		if st.verb == "name" {
			return nil
		}
		return r.addQueue(name, strings.TrimSpace(strings.TrimPrefix(st.args, words[0])))
	case "after":
		d, err := time.ParseDuration(st.args)
		if err != nil {
			return err
		}
		r.env.AwaitIdle()
		time.Sleep(d) // in a testing/synctest bubble
		r.env.AwaitIdle()
		return nil
	case "violation":
		for _, line := range variants(st.args) {
			if err := r.expectViolation(line); err != nil {
				return fmt.Errorf("%s: %w", line, err)
			}
		}
		return nil
	}
	for i, word := range words {
		if name, ok := strings.CutPrefix(word, "$"); ok {
			words[i], _ = r.vars[name].Str()
		}
	}
	return r.env.Exec(words)
}

// addQueue adds a queue over a new connection and waits until every node
// knows it.
func (r *scriptRun) addQueue(name, config string) error {
	if config == "" {
		config = "{}"
	}
	c, err := r.connect("prepares")
	if err != nil {
		return err
	}
	if err := r.handshake(c, "registers", false); err != nil {
		return err
	}
	m, err := r.parse(fmt.Sprintf("ADDQUEUE {name: %q, config: %s}", name, config))
	if err != nil {
		return err
	}
	r.sendRequest(c, m)
	if err := r.expect(c, "OK {qid: uuid}"); err != nil {
		return err
	}
	c.nc.Close()
	if r.env.AwaitQueue == nil {
		return nil
	}
	return r.env.AwaitQueue(name)
}

// expectViolation runs a whole conversation: it registers, sends one message, and
// checks that the server answers PROTOCOL_VIOLATION and closes.
func (r *scriptRun) expectViolation(rest string) error {
	rest, plain := strings.CutPrefix(rest, "plain ") // without the extension
	c, err := r.connect("violates")
	if err != nil {
		return err
	}
	if err := r.handshake(c, "registers", !plain); err != nil {
		return err
	}
	m, err := r.parse(rest)
	if err != nil {
		return err
	}
	r.sendRequest(c, m)
	if err := r.expect(c, "ERR PROTOCOL_VIOLATION"); err != nil {
		return err
	}
	return r.expectClosed(c)
}

// handshake sends HELLO and, if verb is "registers", REGISTER. If offer is set,
// HELLO offers the delivery extension.
func (r *scriptRun) handshake(c *client, verb string, offer bool) error {
	requests, responses := []string{"HELLO {}"}, []string{"HI {}"}
	if offer {
		requests[0] = fmt.Sprintf("HELLO {ext: [%q]}", overhop.Delivery)
		responses[0] = fmt.Sprintf("HI {ext: [%q], node: str, max_envelope_size_bytes: int}", overhop.Delivery)
	}
	if verb == "registers" {
		requests, responses = append(requests, "REGISTER {}"), append(responses, "OK {wid: $"+c.name+"_wid}")
		delete(r.vars, c.name+"_wid")
	}
	for i := range requests {
		m, err := r.parse(requests[i])
		if err == nil {
			r.sendRequest(c, m)
			err = r.expect(c, responses[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wireRequest is a request parsed from a line.
type wireRequest struct {
	name, rid string
	typ       int64
	payload   overhop.Raw
}

// parse parses "NAME @rid {…}". The name may be a number.
func (r *scriptRun) parse(text string) (m wireRequest, err error) {
	m.name, text, _ = strings.Cut(text, " ")
	if m.typ = typeByName[m.name]; m.typ == 0 {
		if _, err := fmt.Sscanf(m.name, "%d", &m.typ); err != nil {
			return m, fmt.Errorf("%q is not a message", m.name)
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
		m.payload, err = r.vars.encode(nil, v)
	}
	return m, err
}

// sendRequest sends m, under the next request id if it has none.
func (r *scriptRun) sendRequest(c *client, m wireRequest) {
	if m.rid == "" {
		c.count++
		m.rid = fmt.Sprintf("%d", c.count)
	}
	c.pending = append(c.pending, pendingRequest{wireRequest: m, state: c.state})
	c.write(overhop.AppendMessage(nil, m.typ, m.rid, m.payload))
}

// expect checks that the next message is "NAME {…}" or "ERR CODE {…}". After a
// retried request, any other answer repeats the request until the timeout. A cluster
// whose authority changes answers UNAVAILABLE, which repeats any request: that the job is not in the
// state for it then means that the first one has taken effect.
func (r *scriptRun) expect(c *client, rest string) error {
	name, text, _ := strings.Cut(rest, " ")
	t := typeByName[name]
	if t == 0 {
		return fmt.Errorf("%q is not a message", name)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		text = "{}"
	}
	if name == "ERR" {
		code, details, found := strings.Cut(text, " ")
		text = fmt.Sprintf("{code: %q, msg: str}", code)
		if found {
			text = fmt.Sprintf("{code: %q, details: %s, msg: str}", code, details)
		}
	}
	v, err := parseValue(text)
	if err != nil {
		return err
	}
	retry := c.retry && r.env.AwaitIdle == nil
	c.retry = false
	deadline := time.Now().Add(r.env.Timeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	repeated := false // because the outcome of the request is not known
	for {
		again, e, err := r.expectOne(c, t, rest, v)
		if repeated && name == "OK" && hasCode(&e, overhop.CodeJobNotFound, overhop.CodeJobNotPending) {
			return nil
		}
		unavailable := r.env.AwaitIdle == nil && hasCode(&e, overhop.CodeUnavailable) && len(c.pending) == 0
		if err == nil || !retry && !unavailable || again == nil || time.Now().After(deadline) {
			return err
		}
		repeated = unavailable
		<-tick.C
		r.sendRequest(c, *again)
	}
}

// hasCode reports whether a message is an error with one of the codes.
func hasCode(e *overhop.Envelope, codes ...overhop.Code) bool {
	code, _ := e.P.Get("code").Str()
	return e.T == overhop.TErr && slices.Contains(codes, overhop.Code(code))
}

// expectOne checks the next message e against type t and payload v, and returns it with
// the request it answers, if any.
func (r *scriptRun) expectOne(c *client, t int64, expected string, v value) (request *wireRequest, e overhop.Envelope, err error) {
	e, err = c.next(&r.env, isPush(t))
	if err != nil {
		return nil, e, fmt.Errorf("%s %w; want %s", c.name, err, expected)
	}
	exchange := Exchange{Name: "push", State: c.state, Answer: nameByType[e.T], Response: e.P}
	rid := overhop.PushRID
	if !isPush(e.T) && len(c.pending) > 0 {
		was := c.pending[0]
		c.pending = c.pending[1:]
		rid, request = was.rid, &was.wireRequest
		request.rid = ""
		exchange.Name, exchange.State, exchange.Request = was.name, was.state, was.payload
	}
	if e.T != t || e.RID != rid {
		return request, e, fmt.Errorf("%s got %s (t=%d) rid %q %s; want rid %q, %s", c.name, nameByType[e.T], e.T, e.RID, format(e.P), rid, expected)
	}
	if err := r.vars.match(v, e.P); err != nil {
		return request, e, fmt.Errorf("%s got %s %s\n\tpayload: %w; want %s", c.name, nameByType[e.T], format(e.P), err, expected)
	}
	c.updateState(exchange)
	r.exchanged = append(r.exchanged, exchange)
	return request, e, nil
}
