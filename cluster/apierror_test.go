package cluster

import (
	"errors"
	"testing"
)

func TestParsePubAck(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want pubAck
		code int
	}{
		{in: `{"stream":"YARD_JOBS_0", "seq":123}`, want: pubAck{seq: 123}},
		{in: `{"stream":"YARD_JOBS_0","seq":1,"duplicate": true}`, want: pubAck{seq: 1, duplicate: true}},
		{in: `{"stream":"S", "seq":12,"batch":"x","count":5}`, want: pubAck{seq: 12, count: 5}},
		{in: `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"S","seq":0}`, code: 10077},
		{in: `{"stream":"S"}`, code: -1},
		{in: `{"stream":"S", "seq":99999999999999999999999}`, code: -1},
		{in: `nonsense`, code: -1},
		{in: ``, code: -1},
	} {
		got, err := parsePubAck([]byte(tt.in))
		var apiErr *apiError
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
