package drill

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// pythonContent has a Python client read a result and a payload that do not fit into a
// frame, and a Python worker run the job with the payload.
func pythonContent(t *testing.T, ctx context.Context, cl *Cluster) {
	body := `{"id":"9ac5cfa8-58fd-4b53-b0a5-7b1b1a3eb3c6","delay_ms":86400000,"function":"measure","params":{"text":"` + strings.Repeat("ü", 10<<20) + `"}}`
	code, answer, err := cl.Nodes[0].callHTTP(ctx, http.DefaultClient, "POST /v1/queues/large/jobs", []byte(body))
	if err != nil || code != http.StatusAccepted {
		t.Fatalf("enqueue: %d, %s, %v", code, answer, err)
	}
	reader := pythonProcess(t, cl, "python-content", filepath.Join("testdata", "python", "content.py"), "large:9ac5cfa8-58fd-4b53-b0a5-7b1b1a3eb3c6")
	endWell(t, ctx, reader)
	if output := reader.Log(); !strings.Contains(output, "read 12582912 10485760 10485760") {
		t.Errorf("it printed %q", output)
	}
}
