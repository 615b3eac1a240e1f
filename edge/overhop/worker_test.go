package overhop

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"yardmaster/internal/frame"
)

// refusing is a node that lets a worker register and then refuses its
// subscriptions, one code after the other, the last again and again.
func refusing(t *testing.T, codes ...Code) func(context.Context, string) (net.Conn, error) {
	return func(context.Context, string) (net.Conn, error) {
		code := codes[0]
		codes = codes[min(1, len(codes)-1):]
		ours, theirs := net.Pipe()
		go func() {
			defer ours.Close()
			in := frame.NewReader(ours, DefaultFrameLimit)
			for {
				payload, err := in.Next()
				if err != nil {
					return
				}
				e, err := ParseEnvelope(payload)
				if err != nil {
					t.Error(err)
					return
				}
				var answer []byte
				switch e.T {
				case THello:
					answer = AppendHi(nil, e.RID, true, "n1")
				case TRegister:
					answer = AppendOK(nil, e.RID, AppendValue(nil, Fields{"wid": "w"}))
				default:
					answer = AppendErr(nil, e.RID, code, "no", nil)
				}
				if _, err := ours.Write(answer); err != nil {
					return
				}
			}
		}()
		return theirs, nil
	}
}

// A refusal that nothing would take back ends the worker; one that time might
// take back does not.
func TestWorker_Refused(t *testing.T) {
	for _, code := range []Code{
		CodeQueueNotFound, CodeProtocolViolation, CodeInvalidQueueName, CodeSystemQueue, CodeDuplicateSub, CodeNotImplemented,
	} {
		synctest.Test(t, func(t *testing.T) {
			dials := 0
			dial := refusing(t, CodeUnavailable, CodeDraining, code)
			w := Worker{
				Nodes: []string{"n1"}, Create: true, Log: slog.New(slog.DiscardHandler),
				Dial: func(ctx context.Context, addr string) (net.Conn, error) {
					dials++
					return dial(ctx, addr)
				},
			}
			w.Handle("mail", 1, func(context.Context, *Quest) (Raw, error) { return Nil, nil })
			err := w.Run(t.Context())
			if ErrorCode(err) != code || !strings.Contains(err.Error(), `subscribe to "mail"`) || dials != 3 {
				t.Errorf("%s: %v after %d connections", code, err, dials)
			}
		})
	}
}
