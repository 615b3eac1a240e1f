package runnerpool

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/yardmaster-dev/yardmaster/job"
)

// A running dispatch keeps its job's spec, but not the message that contained
// the body.
func TestDispatch_ReleasesTheBody(t *testing.T) {
	const body = `{"function":"r#h","params":{"n":1}}`
	d, message := func() (*dispatch, weak.Pointer[byte]) {
		message := append(make([]byte, 0, 256<<10), body...)
		spec, err := job.ParseShared(message)
		if err != nil {
			t.Fatal(err)
		}
		return newDispatch(job.Assignment{Function: "r#h", Body: message}, spec, nil, time.Hour), weak.Make(&message[0])
	}()
	runtime.GC()
	if message.Value() != nil {
		t.Error("the message is still reachable")
	}
	if d.Function != "r#h" || string(d.spec.Params) != `{"n":1}` {
		t.Errorf("dispatch %+v", d.Assignment)
	}
}
