package overhop

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"
)

// Lifetimes limit how long a connection may exist without registering.
type Lifetimes struct {
	Unhelloed    time.Duration // from the connection to HELLO
	Unregistered time.Duration // from HELLO to the server's IDENT
	Ident        time.Duration // from IDENT to REGISTER
}

// TickInterval returns the interval at which [Session.Tick] must be called.
func (l Lifetimes) TickInterval() time.Duration { return min(l.Unhelloed, l.Unregistered, l.Ident) }

// Session enforces, for a server, the order in which a client must send
// messages. It performs no I/O and has no clock: callers pass messages and the
// time, and perform the returned [Step].
//
//	fresh ──HELLO──▶ helloed ──REGISTER──▶ registered ──anything else──▶ registered
//	  │ Unhelloed       │ Unregistered: IDENT
//	  ▼                 ▼ Ident
//	closed silently   CONNECTION_TIMEOUT
//
// A wrong or missing token is reported in the answer to REGISTER, not to HELLO.
type Session struct {
	lifetimes     Lifetimes
	state         state
	unauthorized  bool      // HELLO did not contain the token
	since         time.Time // when the connection began or, once helloed, when HELLO arrived
	identDeadline time.Time // deadline of the IDENT; zero: none was sent

	// These must be set before the first Step.
	Token          string // REGISTER fails unless HELLO contained it; empty: none is required
	AllowExtension bool   // accept the extension from clients that did not offer it

	// Hello describes the client. It is valid once HELLO was received.
	Hello Hello
}

type state uint8

const (
	connected state = iota
	helloed
	registered
)

// NewSession returns the session of a connection accepted at the time now.
func NewSession(life Lifetimes, now time.Time) *Session { return &Session{lifetimes: life, since: now} }

// Action is what a server must do after an event.
type Action uint8

// The actions.
const (
	ActionNone        Action = iota
	ActionHi                 // answer HI
	ActionRegister           // make it a worker and answer OK with its wid
	ActionHandle             // a registered worker's request: handle it
	ActionIdent              // push IDENT with Step.Deadline
	ActionRefuse             // answer ERR with Step.Code and Step.Message, then close
	ActionClose              // close without a message
	ActionPushRefusal        // like ActionRefuse, but as a push: there is no request
)

// Step is the result of an event.
type Step struct {
	Action   Action
	Code     Code
	Message  string
	Deadline time.Time
}

func refuse(code Code, format string, args ...any) Step {
	return Step{Action: ActionRefuse, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Registered reports whether the client has registered.
func (s *Session) Registered() bool { return s.state == registered }

// Helloed reports whether the client has sent HELLO and not registered.
func (s *Session) Helloed() bool { return s.state == helloed }

// Challenged reports whether the client was sent an IDENT and has not
// registered.
func (s *Session) Challenged() bool { return s.state == helloed && !s.identDeadline.IsZero() }

// Step handles the client's next message, which arrived at the time now, and
// returns what the server must do. The first message must be HELLO.
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
	s.unauthorized = s.Token != "" && !s.tokenMatches(e.P.Get("token"))
	s.state, s.since = helloed, now
	return Step{Action: ActionHi}
}

// tokenMatches reports whether the token is right. It takes the same time for
// every wrong token of any length; a value that is not text is wrong.
func (s *Session) tokenMatches(given Raw) bool {
	text, _ := given.Text()
	requiredHash, givenHash := sha256.Sum256([]byte(s.Token)), sha256.Sum256(text)
	return subtle.ConstantTimeCompare(requiredHash[:], givenHash[:]) == 1
}

// register handles the message that follows HELLO. It registers the client if
// the message is a REGISTER with an empty payload, has arrived before the
// deadline of the IDENT, if one was sent, and HELLO contained the right token.
func (s *Session) register(e Envelope, now time.Time) Step {
	if e.T != TRegister {
		return refuse(CodeProtocolViolation, "after HELLO only REGISTER (t=%d) is allowed, not t=%d", TRegister, e.T)
	}
	if err := ParseEmpty(e.P); err != nil {
		return refuse(CodeProtocolViolation, "REGISTER %v", err)
	}
	if !s.identDeadline.IsZero() && !now.Before(s.identDeadline) {
		return refuse(CodeRegisterTimeout, "REGISTER came after IDENT's deadline")
	}
	if s.unauthorized {
		return refuse(CodeUnauthorized, "this node requires a token: HELLO must contain the right one as %q", "token")
	}
	s.state = registered
	return Step{Action: ActionRegister}
}

// request handles a message of a registered client. Requests of the delivery
// extension are allowed only to clients that offered it, unless AllowExtension
// is set.
func (s *Session) request(e Envelope) Step {
	isExtension := e.T >= TAck && e.T <= TAPI
	switch {
	case e.T == THello || e.T == TRegister:
		return refuse(CodeProtocolViolation, "t=%d is not allowed after REGISTER", e.T)
	case !isExtension && (e.T < TPing || e.T > TQStats):
		return refuse(CodeProtocolViolation, "unknown message type t=%d", e.T)
	case isExtension && !s.AllowExtension && !s.Hello.Delivery:
		return refuse(CodeProtocolViolation, "t=%d needs ext [%q] in HELLO", e.T, Delivery)
	}
	return Step{Action: ActionHandle}
}

// Tick handles the passage of time until now, and returns what the server must
// do if one of the [Lifetimes] is over. It must be called every
// [Lifetimes.TickInterval].
func (s *Session) Tick(now time.Time) Step {
	age := now.Sub(s.since)
	switch {
	case s.state == connected && age >= s.lifetimes.Unhelloed:
		return Step{Action: ActionClose}
	case s.state != helloed:
		return Step{}
	case s.identDeadline.IsZero() && age >= s.lifetimes.Unregistered:
		s.identDeadline = now.Add(s.lifetimes.Ident)
		return Step{Action: ActionIdent, Deadline: s.identDeadline}
	case !s.identDeadline.IsZero() && !now.Before(s.identDeadline):
		step := refuse(CodeConnectionTimeout, "no REGISTER before IDENT's deadline")
		step.Action = ActionPushRefusal
		return step
	}
	return Step{}
}
