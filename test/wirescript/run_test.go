package wirescript

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// echo serves one connection: it answers HELLO with HI, and every other request
// with OK and the request's payload.
func echo(nc net.Conn) {
	defer nc.Close()
	in := frame.NewReader(nc, overhop.MaxFrameLimit)
	for {
		b, err := in.Next()
		if err != nil {
			return
		}
		e, err := overhop.ParseEnvelope(b)
		if err != nil {
			return
		}
		answer := overhop.AppendOK(nil, e.RID, e.P)
		if e.T == overhop.THello {
			answer = overhop.AppendHi(nil, e.RID, overhop.Hello{Delivery: len(e.P.Get("ext")) > 0}, "n1", overhop.DefaultFrameLimit)
		}
		if _, err := nc.Write(answer); err != nil {
			return
		}
	}
}

// TestRun checks that errors in a conversation are reported with their line.
func TestRun(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"well":           {"a hello\na -> PING {x: [1, {y: h'00ff'}]}\na <- OK {x: [int, {y: h'00ff'}]}", ""},
		"variables":      {"a hello\na -> PING {x: \"1\"}\na <- OK {x: $x}\na -> PING {x: \"${x}2\"}\na <- OK {x: \"12\"}", ""},
		"items":          {"a hello\na -> PING {x: [1, 2, 3, 4]}\na <- OK {x: [..., 2, ..., 4]}", ""},
		"sends anything": {"a hello\na -> PING {x: *}", "line.txt:2: * can be matched, not sent"},
		"wrong value":    {"a hello\na -> PING {x: [1, 2]}\na <- OK {x: [1, 3]}", "line.txt:3: a got OK"},
		"wrong kind":     {"a hello\na -> PING {x: 1}\na <- OK {x: str}", ".x is not a str"},
		"more keys":      {"a hello\na -> PING {x: 1, y: 2}\na <- OK {x: 1}", "has 2 keys, not 1"},
		"fewer keys":     {"a hello\na -> PING {}\na <- OK {x: *, ...}", ".x is missing"},
		"more items":     {"a hello\na -> PING {x: [1, 2]}\na <- OK {x: [1]}", ".x has 2 items, not 1"},
		"fewer items":    {"a hello\na -> PING {x: [1]}\na <- OK {x: [..., 2]}", ".x has no item 1"},
		"wrong message":  {"a hello\na -> PING\na <- PONG {}", "want rid \"2\", PONG"},
		"same variable":  {"a hello\na -> PING {x: 1, y: 2}\na <- OK {x: $x, y: $x}", "is not $x, which is 1"},
		"not closed":     {"a hello\na closed", "connection is still open"},
		"closed":         {"a hello\na bytes 00000000\na closed", ""},
		"bad value":      {"a hello\na -> PING {x: 1.5}", "line.txt:2:"},
		"bad name":       {"a hello\na -> PONK", `"PONK" is not a message`},
		"unconnected":    {"a -> PING", "a has not connected"},
		"no verb":        {"a sings", `unknown verb "sings"`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "line.txt"), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			all, err := Load(dir)
			if err == nil {
				_, err = all[0].Run(Env{Timeout: 300 * time.Millisecond, Dial: func(string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					go echo(theirs)
					return ours, nil
				}})
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestRows checks that each row is covered by the exchange it describes and by no
// other.
func TestRows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows.tsv")
	table := "# comment\nSUBSCRIBE\tcredits missing|<0|not int,nil\tERR PROTOCOL_VIOLATION\nLOG\tlines.0.msg int\tOK\tno reason\n"
	if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := LoadRows(file)
	if err != nil || len(rows) != 2+5+1 || rows[7].Untestable != "no reason" {
		t.Fatalf("%v, %v", rows, err)
	}
	refused := overhop.Raw(overhop.AppendValue(nil, overhop.Fields{"code": "PROTOCOL_VIOLATION"}))
	exchange := func(p overhop.Fields) Exchange {
		return Exchange{Name: "SUBSCRIBE", Request: overhop.AppendValue(nil, p), Answer: "ERR", Response: refused}
	}
	for i, x := range []Exchange{
		exchange(overhop.Fields{}), exchange(overhop.Fields{"credits": -1}), exchange(overhop.Fields{"credits": true}),
		exchange(overhop.Fields{"credits": "1"}), exchange(overhop.Fields{"credits": []byte{1}}), exchange(overhop.Fields{"credits": []any{}}),
		exchange(overhop.Fields{"credits": overhop.Fields{}}),
		{Name: "LOG", Answer: "OK", Request: overhop.AppendValue(nil, overhop.Fields{"lines": []any{overhop.Fields{"msg": 1}}}), Response: overhop.EmptyMap},
	} {
		for j, row := range rows {
			if row.CoveredBy(x) != (i == j) {
				t.Errorf("row %q covered by exchange %d: %t", row, i, i != j)
			}
		}
	}
}
