package overhop

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"
)

// Lifetimes bound how long a connection may stay without registering.
type Lifetimes struct {
	Unhelloed    time.Duration // from the connection's begin to HELLO
	Unregistered time.Duration // from HELLO to the server's IDENT
	Ident        time.Duration // from IDENT to REGISTER
}

// Cadence is how often [Session.Tick] is to be called.
func (l Lifetimes) Cadence() time.Duration { return min(l.Unhelloed, l.Unregistered, l.Ident) }

// Session holds a server's side of the rules of order. It is pure: what it is
// told comes with the time, what is to be done comes back as a [Step].
//
//	fresh ──HELLO──▶ helloed ──REGISTER──▶ registered ──anything else──▶ registered
//	  │ Unhelloed       │ Unregistered: IDENT
//	  ▼                 ▼ Ident
//	closed silently   CONNECTION_TIMEOUT
//
// Whether HELLO brought the token shows at REGISTER only: that a client may not
// register is REGISTER's answer.
type Session struct {
	life   Lifetimes
	token  string // asked of HELLO; empty: none
	all    bool   // the extension is for whoever uses it
	state  state
	barred bool      // its HELLO did not bring the token
	since  time.Time // the connection's begin, then HELLO's arrival
	answer time.Time // IDENT's deadline; zero: not asked

	// Hello is what the client said of itself; valid once it said it.
	Hello Hello
}

type state uint8

const (
	fresh state = iota
	helloed
	registered
)

// NewSession begins at the connection's accept.
func NewSession(life Lifetimes, now time.Time) *Session { return &Session{life: life, since: now} }

// RequireToken lets only clients register whose HELLO brings this token; an
// empty one is asked of nobody. It is to be called before the first Step.
func (s *Session) RequireToken(token string) { s.token = token }

// AllowExtension lets requests of the extension through also if HELLO did not
// offer it. It is to be called before the first Step.
func (s *Session) AllowExtension() { s.all = true }

// Do is what a server has to do next.
type Do uint8

// What may have to be done.
const (
	DoNothing   Do = iota
	DoHi           // answer HI
	DoRegister     // make it a worker and answer OK with its wid
	DoHandle       // a registered worker's request: handle it
	DoIdent        // push IDENT with Step.Deadline
	DoRefuse       // answer ERR with Step.Code and Step.Message, then close
	DoHangUp       // close without a word
	DoRefuseOut    // as DoRefuse, but pushed: nothing was asked
)

// Step is the outcome of an event.
type Step struct {
	Do       Do
	Code     Code
	Message  string
	Deadline time.Time
}

func refuse(code Code, format string, args ...any) Step {
	return Step{Do: DoRefuse, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Registered tells a session whose client is a worker.
func (s *Session) Registered() bool { return s.state == registered }

// HelloedAt tells since when the client has waited to register; ok is false
// if it does not.
func (s *Session) HelloedAt() (at time.Time, ok bool) { return s.since, s.state == helloed }

// Challenged tells a session that was sent an IDENT and has not answered it.
func (s *Session) Challenged() bool { return s.state == helloed && !s.answer.IsZero() }

// Step takes the client's next message.
func (s *Session) Step(e Envelope, now time.Time) Step {
	switch s.state {
	case registered:
		return s.request(e)
	case helloed:
		return s.register(e, now)
	}
	if e.T != THello {
		return refuse(CodeProtocolViolation, "first message must be HELLO (t=%d), not t=%d", THello, e.T)
	}
	s.Hello = parseHello(e.P)
	s.barred = s.token != "" && !s.proves(e.P.Get("token"))
	s.state, s.since = helloed, now
	return Step{Do: DoHi}
}

// proves tells the right token. It takes as long for a wrong one, and for one of
// another length; what is no text is a wrong one.
func (s *Session) proves(given Raw) bool {
	text, _ := given.Text()
	want, got := sha256.Sum256([]byte(s.token)), sha256.Sum256(text)
	return subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

func (s *Session) register(e Envelope, now time.Time) Step {
	if e.T != TRegister {
		return refuse(CodeProtocolViolation, "after HELLO only REGISTER (t=%d) is allowed, not t=%d", TRegister, e.T)
	}
	if err := ParseEmpty(e.P); err != nil {
		return refuse(CodeProtocolViolation, "REGISTER %v", err)
	}
	if !s.answer.IsZero() && !now.Before(s.answer) {
		return refuse(CodeRegisterTimeout, "REGISTER came after IDENT's deadline")
	}
	if s.barred {
		return refuse(CodeUnauthorized, "this node asks for a token: HELLO must carry the right one as %q", "token")
	}
	s.state = registered
	return Step{Do: DoRegister}
}

func (s *Session) request(e Envelope) Step {
	switch {
	case e.T == THello || e.T == TRegister:
		return refuse(CodeProtocolViolation, "t=%d is not allowed after REGISTER", e.T)
	case e.T >= TPing && e.T <= TQStats:
		return Step{Do: DoHandle}
	case e.T >= TAck && e.T <= TObliterate && (s.all || s.Hello.Delivery):
		return Step{Do: DoHandle}
	case e.T >= TAck && e.T <= TObliterate:
		return refuse(CodeProtocolViolation, "t=%d needs ext [%q] in HELLO", e.T, Delivery)
	}
	return refuse(CodeProtocolViolation, "unknown message type t=%d", e.T)
}

// Tick is to be called every [Lifetimes.Cadence].
func (s *Session) Tick(now time.Time) Step {
	switch {
	case s.state == fresh && now.Sub(s.since) >= s.life.Unhelloed:
		return Step{Do: DoHangUp}
	case s.state != helloed:
		return Step{}
	case s.answer.IsZero() && now.Sub(s.since) >= s.life.Unregistered:
		s.answer = now.Add(s.life.Ident)
		return Step{Do: DoIdent, Deadline: s.answer}
	case !s.answer.IsZero() && !now.Before(s.answer):
		step := refuse(CodeConnectionTimeout, "no REGISTER before IDENT's deadline")
		step.Do = DoRefuseOut
		return step
	}
	return Step{}
}
