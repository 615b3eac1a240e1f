package job

import (
	"strings"
	"testing"
)

func TestCheckDepth(t *testing.T) {
	lists := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for text, want := range map[string]int{
		`1`: 0, `"[["`: 0, `{}`: 1, `{"a":[1,[2]],"b":{}}`: 3, `{"a\"[":"\\","b":[]}`: 2, lists(120): 120, lists(121): 121, lists(9000): 9000,
		"[" + strings.Repeat(`[],{},`, 200) + "0]": 2,
	} {
		err := CheckDepth("params", []byte(text))
		if got := Depth([]byte(text)); got != want || (err != nil) != (want > MaxDepth) {
			t.Errorf("%s: %d, %v", CutText(text, 40), got, err)
		}
	}
	const want = "params: arrays and objects are nested 121 deep; at most 120"
	if err := CheckDepth("params", []byte(lists(121))); err == nil || err.Error() != want {
		t.Error(err)
	}
}
