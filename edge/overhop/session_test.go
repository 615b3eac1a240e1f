package overhop

import (
	"strings"
	"testing"
	"time"
)

var lifetimes = Lifetimes{Unhelloed: 10 * time.Second, Unregistered: 10 * time.Second, Ident: 2 * time.Second}

var startTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testEnvelope(t int64, p Fields) Envelope {
	return Envelope{T: t, RID: "1", P: AppendValue(nil, p)}
}

func TestSessionOrder(t *testing.T) {
	hello := testEnvelope(THello, Fields{"anything": 1})
	offered := testEnvelope(THello, Fields{"ext": []any{"other/1", Delivery}, "name": 5})
	register := testEnvelope(TRegister, Fields{})
	for _, c := range []struct {
		name string
		says []Envelope
		want Action // of the last
		code Code
	}{
		{"HELLO first", []Envelope{hello}, ActionHi, ""},
		{"REGISTER first", []Envelope{register}, ActionRefuse, CodeProtocolViolation},
		{"PING first", []Envelope{testEnvelope(TPing, nil)}, ActionRefuse, CodeProtocolViolation},
		{"HELLO twice", []Envelope{hello, hello}, ActionRefuse, CodeProtocolViolation},
		{"PING before REGISTER", []Envelope{hello, testEnvelope(TPing, nil)}, ActionRefuse, CodeProtocolViolation},
		{"REGISTER with a key", []Envelope{hello, testEnvelope(TRegister, Fields{"a": 1})}, ActionRefuse, CodeProtocolViolation},
		{"REGISTER", []Envelope{hello, register}, ActionRegister, ""},
		{"HELLO after REGISTER", []Envelope{hello, register, hello}, ActionRefuse, CodeProtocolViolation},
		{"REGISTER twice", []Envelope{hello, register, register}, ActionRefuse, CodeProtocolViolation},
		{"PING", []Envelope{hello, register, testEnvelope(TPing, nil)}, ActionHandle, ""},
		{"QSTATS", []Envelope{hello, register, testEnvelope(TQStats, nil)}, ActionHandle, ""},
		{"t=19", []Envelope{hello, register, testEnvelope(19, nil)}, ActionRefuse, CodeProtocolViolation},
		{"t=0", []Envelope{hello, register, testEnvelope(0, nil)}, ActionRefuse, CodeProtocolViolation},
		{"t=-1", []Envelope{hello, register, testEnvelope(-1, nil)}, ActionRefuse, CodeProtocolViolation},
		{"a server's t", []Envelope{hello, register, testEnvelope(TOK, nil)}, ActionRefuse, CodeProtocolViolation},
		{"ACK not offered", []Envelope{hello, register, testEnvelope(TAck, nil)}, ActionRefuse, CodeProtocolViolation},
		{"ACK offered", []Envelope{offered, register, testEnvelope(TAck, nil)}, ActionHandle, ""},
		{"t=57 offered", []Envelope{offered, register, testEnvelope(57, nil)}, ActionRefuse, CodeProtocolViolation},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSession(lifetimes, startTime)
			var step Step
			for _, e := range c.says {
				step = s.Step(e, startTime)
			}
			if step.Action != c.want || step.Code != c.code {
				t.Errorf("got %+v, want %v %s", step, c.want, c.code)
			}
		})
	}
}

// A client without the right token is refused when it registers, not before.
func TestSessionToken(t *testing.T) {
	for _, c := range []struct {
		name  string
		token string
		hello Fields
		code  Code
	}{
		{"right", "sesame", Fields{"token": "sesame"}, ""},
		{"none", "sesame", nil, CodeUnauthorized},
		{"empty", "sesame", Fields{"token": ""}, CodeUnauthorized},
		{"beginning", "sesame", Fields{"token": "sesam"}, CodeUnauthorized},
		{"other", "sesame", Fields{"token": "sesamf"}, CodeUnauthorized},
		{"bytes", "sesame", Fields{"token": []byte("sesame")}, CodeUnauthorized},
		{"number", "7", Fields{"token": 7}, CodeUnauthorized},
		{"list", "sesame", Fields{"token": []any{"sesame"}}, CodeUnauthorized},
		{"not asked", "", Fields{"token": 7}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSession(lifetimes, startTime)
			s.Token = c.token
			if step := s.Step(testEnvelope(THello, c.hello), startTime); step.Action != ActionHi {
				t.Errorf("HELLO: %+v, want HI", step)
			}
			step := s.Step(testEnvelope(TRegister, nil), startTime)
			if step.Code != c.code || s.Registered() != (c.code == "") || (c.code != "") != (step.Action == ActionRefuse) {
				t.Errorf("REGISTER: %+v, registered: %t", step, s.Registered())
			}
			if c.token != "" && strings.Contains(step.Message, c.token) {
				t.Errorf("the message contains the token: %q", step.Message)
			}
		})
	}
	s := NewSession(lifetimes, startTime)
	s.Token = "sesame"
	s.Step(testEnvelope(THello, nil), startTime)
	if step := s.Step(testEnvelope(TPing, nil), startTime); step.Code != CodeProtocolViolation {
		t.Errorf("PING before REGISTER: %+v", step)
	}
}

func TestSessionLifetimes(t *testing.T) {
	at := func(seconds float64) time.Time { return startTime.Add(time.Duration(seconds * float64(time.Second))) }
	s := NewSession(lifetimes, startTime)
	if step := s.Tick(at(9.9)); step.Action != ActionNone {
		t.Errorf("unhelloed at 9.9 s: %+v", step)
	}
	if step := s.Tick(at(10)); step.Action != ActionClose {
		t.Errorf("unhelloed at 10 s: %+v, want a silent end", step)
	}

	s = NewSession(lifetimes, startTime)
	s.Step(testEnvelope(THello, nil), at(5))
	if step := s.Tick(at(14.9)); step.Action != ActionNone {
		t.Errorf("unregistered for 9.9 s: %+v", step)
	}
	if step := s.Tick(at(15)); step.Action != ActionIdent || !step.Deadline.Equal(at(17)) || !s.Challenged() {
		t.Errorf("unregistered for 10 s: %+v, want IDENT until 17 s", step)
	}
	if step := s.Tick(at(16)); step.Action != ActionNone {
		t.Errorf("asked a second time: %+v", step)
	}
	late := *s
	if step := s.Step(testEnvelope(TRegister, nil), at(16.9)); step.Action != ActionRegister {
		t.Errorf("REGISTER in time: %+v", step)
	}
	if step := s.Tick(at(100)); step.Action != ActionNone {
		t.Errorf("registered: %+v", step)
	}
	if step := late.Step(testEnvelope(TRegister, nil), at(17)); step.Action != ActionRefuse || step.Code != CodeRegisterTimeout {
		t.Errorf("late REGISTER: %+v", step)
	}
	if step := late.Tick(at(17)); step.Action != ActionPushRefusal || step.Code != CodeConnectionTimeout {
		t.Errorf("no REGISTER: %+v", step)
	}
}

// No order of messages and times makes the session handle a request before
// REGISTER.
func FuzzSession(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0, 0, 40, 14})
	f.Fuzz(func(t *testing.T, script []byte) {
		s, now := NewSession(lifetimes, startTime), startTime
		registered := false
		for _, b := range script {
			if b >= 200 {
				now = now.Add(time.Duration(b-199) * time.Second / 4)
				if s.Tick(now).Action == ActionClose {
					return
				}
				continue
			}
			step := s.Step(testEnvelope(int64(b), nil), now)
			switch {
			case step.Action == ActionRefuse:
				return
			case step.Action == ActionRegister:
				registered = true
			case step.Action == ActionHandle && !registered:
				t.Fatalf("t=%d is handled before REGISTER", b)
			}
		}
	})
}
