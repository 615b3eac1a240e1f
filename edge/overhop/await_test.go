package overhop

import "testing"

// A result that was omitted is not reported as an empty one.
func TestJobEnd_Omitted(t *testing.T) {
	for _, c := range []struct {
		p    Fields
		want Code
	}{
		{Fields{"status": "completed", "result": nil}, ""},
		{Fields{"status": "completed", "result": 7, "omitted": []string{"payload"}}, ""},
		{Fields{"status": "completed", "result": nil, "omitted": []string{"payload", "result"}}, CodeResponseTooLarge},
	} {
		end := parseJobEnd(c.p.Raw())
		var result any
		if err := end.Decode(&result); ErrorCode(err) != c.want {
			t.Errorf("%v: %v, want %q", c.p, err, c.want)
		}
	}
}
