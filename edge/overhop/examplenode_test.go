package overhop_test

import (
	"net"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// serveExample answers the requests of the examples.
func serveExample(nc net.Conn) {
	defer nc.Close()
	in := frame.NewReader(nc, overhop.DefaultFrameLimit)
	for {
		payload, err := in.Next()
		if err != nil {
			return
		}
		e, err := overhop.ParseEnvelope(payload)
		if err != nil {
			return
		}
		if _, err := nc.Write(exampleAnswer(e)); err != nil {
			return
		}
	}
}

func exampleAnswer(e overhop.Envelope) []byte {
	answer := overhop.Fields{}
	switch e.T {
	case overhop.THello:
		return overhop.AppendHi(nil, e.RID, overhop.Hello{Delivery: true}, "n1", overhop.DefaultFrameLimit)
	case overhop.TRegister:
		answer["wid"] = "w"
	case overhop.TSubscribe:
		answer["sid"] = "s"
	case overhop.TEnqueue:
		answer["jid"] = "mail:1"
	case overhop.TAwait:
		answer = overhop.Fields{"jid": "mail:1", "status": "completed", "result": overhop.Fields{"sent": true}}
	}
	b := overhop.AppendOK(nil, e.RID, answer.Raw())
	if e.T == overhop.TCredit {
		q := overhop.Quest{
			JID: "mail:1", Queue: "mail", SID: "s", Attempt: 1, Lease: 6 * time.Second, Beat: 2 * time.Second,
			Payload: overhop.Fields{"To": "ann"}.Raw(),
		}
		b, _ = overhop.AppendQuest(b, &q, overhop.DefaultFrameLimit)
	}
	return b
}
