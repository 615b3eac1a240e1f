package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/backup"
)

// startBackup requests a backup over HTTP and returns the response, whose body is unread.
func startBackup(t *testing.T, n *Node) *http.Response {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addresses().HTTP+"/v1/backup", nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Body.Close() })
	return w
}

// A backup over HTTP is the file that a backup over NATS saves. While it is read, there is
// no second one, and if it fails, the response ends with an error. A client that goes away
// ends it.
func TestWeb_Backup(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", "{}").decode(t, http.StatusOK, nil)
	noise := rand.NewChaCha8([32]byte{1})
	for i := range 8 { // more than connections buffer, and not compressible
		text := make([]byte, 2<<20)
		_, _ = noise.Read(text) // never returns an error
		body := fmt.Sprintf(`{"id":"j%d","function":"send","params":{"text":%q}}`, i, base64.StdEncoding.EncodeToString(text))
		send(t, n, "POST", "/v1/queues/mail/jobs", body).decode(t, http.StatusAccepted, nil)
	}
	waitUntil(t, "the jobs wait", func() bool {
		var q api.Queue
		send(t, n, "GET", "/v1/queues/mail", "").decode(t, http.StatusOK, &q)
		return q.Counts["waiting"] == 8
	})

	whole := startBackup(t, n)
	if got := whole.Header.Get("Content-Disposition"); whole.StatusCode != http.StatusOK || whole.Header.Get("Content-Type") != "application/x-tar" || !strings.Contains(got, "yardmaster-") {
		t.Errorf("%s, %v", whole.Status, whole.Header)
	}
	if got := send(t, n, "POST", "/v1/backup", ""); got.status != http.StatusConflict || !strings.Contains(string(got.body), "already making a backup") {
		t.Errorf("a second backup: %s", got)
	}
	file, err := io.ReadAll(whole.Body)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := backup.Verify(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	if queues := plan.Manifest.Queues; len(queues) != 2 || queues[1].Name != "mail" || queues[1].Waiting != 8 {
		t.Errorf("queues %+v", queues)
	}
	waitUntil(t, "the hold is released", func() bool { return holder(n) == "" })

	gone := startBackup(t, n)
	gone.Body.Close()
	waitUntil(t, "the backup of a client that went away has ended", func() bool { return holder(n) == "" })

	failed := startBackup(t, n)
	_, session, _ := strings.Cut(holder(n), "/")
	if _, err := n.backups.EndBackup(t.Context(), &api.BackupRequest{Session: session}); err != nil {
		t.Fatal(err)
	}
	if part, err := io.ReadAll(failed.Body); err == nil {
		t.Errorf("a backup that was ended is a response of %d bytes without an error", len(part))
	}
	if got := send(t, n, "POST", "/v1/backup", `{"queue":"mail"}`); got.status != http.StatusBadRequest {
		t.Errorf("a backup of one queue: %s", got)
	}
}
