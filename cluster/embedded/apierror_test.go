package embedded

import (
	"errors"
	"testing"
)

func TestParsePubAck(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want PubAck
		code int
	}{
		{in: `{"stream":"YARD_JOBS_0", "seq":123}`, want: PubAck{Seq: 123}},
		{in: `{"stream":"YARD_JOBS_0","seq":1,"duplicate": true}`, want: PubAck{Seq: 1, Duplicate: true}},
		{in: `{"stream":"S", "seq":12,"batch":"x","count":5}`, want: PubAck{Seq: 12}},
		{in: `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"S","seq":0}`, code: 10077},
		{in: `{"stream":"S"}`, code: -1},
		{in: `{"stream":"S", "seq":99999999999999999999999}`, code: -1},
		{in: `nonsense`, code: -1},
		{in: ``, code: -1},
	} {
		got, err := ParsePubAck([]byte(tt.in))
		var apiErr *APIError
		switch {
		case tt.code == 0 && (err != nil || got != tt.want):
			t.Errorf("%s: %+v, %v", tt.in, got, err)
		case tt.code > 0 && (!errors.As(err, &apiErr) || apiErr.ErrCode != tt.code):
			t.Errorf("%s: error %v", tt.in, err)
		case tt.code != 0 && err == nil:
			t.Errorf("%s: no error", tt.in)
		}
	}
}
