package cli

import (
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/cli/usererror"
)

const clearedJob = `{"id":"0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a1`

// 'queue clear' repeats its request while there are more jobs, and changes nothing with
// --dry-run. It refuses to select nothing.
func TestQueueClear(t *testing.T) {
	passes := 0
	f := startFakeAPI(t, cannedReplies{"yard.api.v1.queue.clear": func(request []byte) ([]byte, error) {
		if passes++; strings.Contains(string(request), `"dry_run":true`) {
			return []byte(`{"queue":"mail","dry_run":true,"more":true,"jobs":[` + clearedJob + `0","state":"waiting"}]}`), nil
		}
		if passes == 1 {
			return []byte(`{"queue":"mail","changed":1,"more":true,"jobs":[` + clearedJob + `1","state":"waiting","changed":true}]}`), nil
		}
		return []byte(`{"queue":"mail","changed":0,"jobs":[` + clearedJob + `2","state":"delayed"}]}`), nil
	}})

	got := f.run(t, "queue", "clear", "mail", "--state", "waiting,delayed")
	if got.code != 0 || strings.Count(got.out, "\n") != 3 || got.err != "yardmaster: 1 not removed, 1 removed\n" {
		t.Errorf("clear: code %d, %q, %q", got.code, got.out, got.err)
	}
	if requests := f.requests(); len(requests) != 2 || !strings.Contains(requests[0], `"states":["waiting","delayed"]`) {
		t.Errorf("requests %q", requests)
	}
	got = f.run(t, "queue", "clear", "mail", "--all", "-n")
	if got.code != 0 || !strings.Contains(got.out, "would be removed") || got.err != "yardmaster: 1 would be removed; there are more\n" || len(f.requests()) != 1 {
		t.Errorf("dry run: code %d, %q, %q", got.code, got.out, got.err)
	}
	for _, args := range [][]string{{"queue", "clear", "mail"}, {"queue", "clear", "mail", "--all", "--function", "send"}} {
		if got := f.run(t, args...); got.code != usererror.CodeUsage || len(f.requests()) != 0 {
			t.Errorf("%q: code %d, %q", args, got.code, got.err)
		}
	}
}
