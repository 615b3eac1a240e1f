package query

import "testing"

func TestQuery_UsesLabels(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "queue:mail state:failed since:1h -error:timeout": false, "text:full or node:n1": false,
		"key:a": true, "-tag:eu": true, "queue:mail (state:failed or customer:acme)": true, "meta.a:*": true, "order-7": true, "-(queue:mail params.n:1)": true,
	} {
		if got := parse(t, text).UsesLabels(); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}
