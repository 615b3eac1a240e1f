package overhop

import (
	"strings"
	"testing"
	"time"
)

var life = Lifetimes{Unhelloed: 10 * time.Second, Unregistered: 10 * time.Second, Ident: 2 * time.Second}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func message(t int64, p Fields) Envelope { return Envelope{T: t, RID: "1", P: AppendValue(nil, p)} }

func TestSessionOrder(t *testing.T) {
	hello := message(THello, Fields{"anything": 1})
	offered := message(THello, Fields{"ext": []any{"other/1", Delivery}, "name": 5})
	register := message(TRegister, Fields{})
	for _, c := range []struct {
		name string
		says []Envelope
		want Do // of the last
		code Code
	}{
		{"HELLO first", []Envelope{hello}, DoHi, ""},
		{"REGISTER first", []Envelope{register}, DoRefuse, CodeProtocolViolation},
		{"PING first", []Envelope{message(TPing, nil)}, DoRefuse, CodeProtocolViolation},
		{"HELLO twice", []Envelope{hello, hello}, DoRefuse, CodeProtocolViolation},
		{"PING before REGISTER", []Envelope{hello, message(TPing, nil)}, DoRefuse, CodeProtocolViolation},
		{"REGISTER with a key", []Envelope{hello, message(TRegister, Fields{"a": 1})}, DoRefuse, CodeProtocolViolation},
		{"REGISTER", []Envelope{hello, register}, DoRegister, ""},
		{"HELLO after REGISTER", []Envelope{hello, register, hello}, DoRefuse, CodeProtocolViolation},
		{"REGISTER twice", []Envelope{hello, register, register}, DoRefuse, CodeProtocolViolation},
		{"PING", []Envelope{hello, register, message(TPing, nil)}, DoHandle, ""},
		{"QSTATS", []Envelope{hello, register, message(TQStats, nil)}, DoHandle, ""},
		{"t=19", []Envelope{hello, register, message(19, nil)}, DoRefuse, CodeProtocolViolation},
		{"t=0", []Envelope{hello, register, message(0, nil)}, DoRefuse, CodeProtocolViolation},
		{"t=-1", []Envelope{hello, register, message(-1, nil)}, DoRefuse, CodeProtocolViolation},
		{"a server's t", []Envelope{hello, register, message(TOK, nil)}, DoRefuse, CodeProtocolViolation},
		{"ACK not offered", []Envelope{hello, register, message(TAck, nil)}, DoRefuse, CodeProtocolViolation},
		{"ACK offered", []Envelope{offered, register, message(TAck, nil)}, DoHandle, ""},
		{"t=53 offered", []Envelope{offered, register, message(53, nil)}, DoRefuse, CodeProtocolViolation},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSession(life, epoch)
			var step Step
			for _, e := range c.says {
				step = s.Step(e, epoch)
			}
			if step.Do != c.want || step.Code != c.code {
				t.Errorf("got %+v, want %v %s", step, c.want, c.code)
			}
		})
	}
}

// A client without the right token is heard and answered until it wants to
// register.
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
			s := NewSession(life, epoch)
			s.RequireToken(c.token)
			if step := s.Step(message(THello, c.hello), epoch); step.Do != DoHi {
				t.Errorf("HELLO: %+v, want HI", step)
			}
			step := s.Step(message(TRegister, nil), epoch)
			if step.Code != c.code || s.Registered() != (c.code == "") || (c.code != "") != (step.Do == DoRefuse) {
				t.Errorf("REGISTER: %+v, registered: %t", step, s.Registered())
			}
			if c.token != "" && strings.Contains(step.Message, c.token) {
				t.Errorf("the token is told: %q", step.Message)
			}
		})
	}
	s := NewSession(life, epoch)
	s.RequireToken("sesame")
	s.Step(message(THello, nil), epoch)
	if step := s.Step(message(TPing, nil), epoch); step.Code != CodeProtocolViolation {
		t.Errorf("PING before REGISTER: %+v", step)
	}
}

func TestSessionLifetimes(t *testing.T) {
	at := func(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }
	s := NewSession(life, epoch)
	if step := s.Tick(at(9.9)); step.Do != DoNothing {
		t.Errorf("unhelloed at 9.9 s: %+v", step)
	}
	if step := s.Tick(at(10)); step.Do != DoHangUp {
		t.Errorf("unhelloed at 10 s: %+v, want a silent end", step)
	}

	s = NewSession(life, epoch)
	s.Step(message(THello, nil), at(5))
	if step := s.Tick(at(14.9)); step.Do != DoNothing {
		t.Errorf("unregistered for 9.9 s: %+v", step)
	}
	if step := s.Tick(at(15)); step.Do != DoIdent || !step.Deadline.Equal(at(17)) || !s.Challenged() {
		t.Errorf("unregistered for 10 s: %+v, want IDENT until 17 s", step)
	}
	if step := s.Tick(at(16)); step.Do != DoNothing {
		t.Errorf("asked a second time: %+v", step)
	}
	late := *s
	if step := s.Step(message(TRegister, nil), at(16.9)); step.Do != DoRegister {
		t.Errorf("REGISTER in time: %+v", step)
	}
	if step := s.Tick(at(100)); step.Do != DoNothing {
		t.Errorf("registered: %+v", step)
	}
	if step := late.Step(message(TRegister, nil), at(17)); step.Do != DoRefuse || step.Code != CodeRegisterTimeout {
		t.Errorf("late REGISTER: %+v", step)
	}
	if step := late.Tick(at(17)); step.Do != DoRefuseOut || step.Code != CodeConnectionTimeout {
		t.Errorf("no REGISTER: %+v", step)
	}
}

// In no order of messages and times is a client handled that has not registered.
func FuzzSession(f *testing.F) {
	f.Add([]byte{1, 2, 3, 0, 0, 40, 14})
	f.Fuzz(func(t *testing.T, script []byte) {
		s, now := NewSession(life, epoch), epoch
		registered := false
		for _, b := range script {
			if b >= 200 {
				now = now.Add(time.Duration(b-199) * time.Second / 4)
				if s.Tick(now).Do == DoHangUp {
					return
				}
				continue
			}
			step := s.Step(message(int64(b), nil), now)
			switch {
			case step.Do == DoRefuse:
				return
			case step.Do == DoRegister:
				registered = true
			case step.Do == DoHandle && !registered:
				t.Fatalf("t=%d is handled before REGISTER", b)
			}
		}
	})
}
