package node

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// readParts reads a content over the API, part by part.
func readParts(t *testing.T, n *Node, endpoint, id string) (whole []byte, encoding string, err error) {
	t.Helper()
	for {
		var part api.Content
		if err := request(t, n.apiHandlers(), endpoint, api.ContentRequest{ID: id, Offset: int64(len(whole))}, &part); err != nil {
			return whole, "", err
		}
		whole = append(whole, part.Data...)
		if int64(len(whole)) >= part.Size || len(part.Data) == 0 {
			return whole, part.Encoding, nil
		}
	}
}

// getContent reads a content, or the range of it, over HTTP.
func getContent(t *testing.T, n *Node, path, byteRange string) (status int, header http.Header, body []byte) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+n.Addresses().HTTP+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if byteRange != "" {
		q.Header.Set("Range", "bytes="+byteRange)
	}
	w, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	body, err = io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, w.Header, body
}

// TestJobContent_Params checks that params and payloads of every size and encoding are
// read exactly, in parts and in ranges.
func TestJobContent_Params(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	binary := make([]byte, 3<<20+1)
	for i := range binary {
		binary[i] = byte(i * i / 251)
	}
	packed := append([]byte{0xc6, 0, 0x30, 0, 1}, binary...) // MessagePack: bin 32
	large := fmt.Sprintf(`{"text":%q,"n":12345678901234567890}`, strings.Repeat("ü€x", 300_000))
	for name, tt := range map[string]struct {
		body, encoding string
		want           []byte
	}{
		"small":                   {`{"params":{"n":1}}`, "json", []byte(`{"n":1}`)},
		"large":                   {`{"function":"f","params":` + large + `}`, "json", []byte(large)},
		"large payload":           {`{"payload_msgpack":"` + base64.StdEncoding.EncodeToString(packed) + `"}`, "msgpack", packed},
		"large payload, escaped/": {`{"payload_msgpack":"` + strings.ReplaceAll(base64.StdEncoding.EncodeToString(packed), "/", `\/`) + `"}`, "msgpack", packed},
	} {
		t.Run(name, func(t *testing.T) {
			ack, err := enqueue(n, "mail", tt.body, "", false)
			if err != nil {
				t.Fatal(err)
			}
			id := ack.ID.String()
			got, encoding, err := readParts(t, n, "job-params", id)
			if err != nil || encoding != tt.encoding || !bytes.Equal(got, tt.want) {
				t.Errorf("in parts: %d bytes of %s, %v; want %d of %s", len(got), encoding, err, len(tt.want), tt.encoding)
			}
			status, header, got := getContent(t, n, "/v1/jobs/"+id+"/params", "")
			if status != http.StatusOK || header.Get("Content-Type") != "application/"+tt.encoding || !bytes.Equal(got, tt.want) {
				t.Errorf("over HTTP: %d, %d bytes of %s", status, len(got), header.Get("Content-Type"))
			}
			middle := len(tt.want) / 2
			status, _, got = getContent(t, n, "/v1/jobs/"+id+"/params", fmt.Sprintf("%d-%d", middle, len(tt.want)-2))
			if status != http.StatusPartialContent || !bytes.Equal(got, tt.want[middle:len(tt.want)-1]) {
				t.Errorf("a range over HTTP: %d, %d bytes", status, len(got))
			}
			status, header, got = getContent(t, n, "/v1/jobs/"+id+"/params", fmt.Sprintf("%d-", len(tt.want)))
			var refused api.ErrorReply
			if err := json.Unmarshal(got, &refused); err != nil || status != http.StatusRequestedRangeNotSatisfiable || refused.Error.Code != api.CodeRange ||
				header.Get("Content-Type") != "application/json" || !strings.Contains(refused.Error.Message, fmt.Sprintf("the %d bytes", len(tt.want))) {
				t.Errorf("a range beyond the end over HTTP: %d, %v, %q", status, header, got)
			}
		})
	}
}

// completeJob has a worker complete a job with a text of this many bytes as its result,
// and returns the job's id.
func completeJob(t *testing.T, n *Node, size int) string {
	t.Helper()
	ack, err := enqueue(n, "sized", fmt.Sprintf(`{"params":{"size":%d}}`, size), "", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.waiters.JobEnd(t.Context(), ack.ID, ack.Position); err != nil {
		t.Fatal(err)
	}
	return ack.ID.String()
}

// TestJobContent_Result checks that results of every size are read exactly, and that a
// result that newer ones have evicted leaves its job a success, with the reason and the
// size.
func TestJobContent_Result(t *testing.T) {
	n := startSingleNode(t, nil) // its results have 32 MiB
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/sized", "{}")
	serve(t, n, "sized", func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		var params struct {
			Size int `json:"size"`
		}
		if err := overhop.Unmarshal(q.Payload, &params); err != nil {
			return nil, err
		}
		return overhop.AppendValue(nil, strings.Repeat("r", params.Size)), nil
	})
	show := func(id string) (j api.Job) {
		t.Helper()
		send(t, n, "GET", "/v1/jobs/"+id, "").decode(t, http.StatusOK, &j)
		return j
	}
	results := map[string][]byte{}
	for _, size := range []int{10, 5_000, 700 << 10} {
		results[completeJob(t, n, size)], _ = json.Marshal(strings.Repeat("r", size))
	}
	for id, want := range results {
		got, encoding, err := readParts(t, n, "job-result", id)
		if err != nil || encoding != "json" || !bytes.Equal(got, want) {
			t.Errorf("in parts: %d bytes of %s, %v; want %d", len(got), encoding, err, len(want))
		}
		if status, _, got := getContent(t, n, "/v1/jobs/"+id+"/result", ""); status != http.StatusOK || !bytes.Equal(got, want) {
			t.Errorf("over HTTP: %d, %d bytes, want %d", status, len(got), len(want))
		}
		if status, _, got := getContent(t, n, "/v1/jobs/"+id+"/result", "-3"); status != http.StatusPartialContent || !bytes.Equal(got, want[len(want)-3:]) {
			t.Errorf("the end over HTTP: %d, %q", status, got)
		}
		if j := show(id); j.ResultBytes != int64(len(want)) || (len(j.Result) > 0) != (len(want) <= api.MaxShownBytes) {
			t.Errorf("job with a result of %d bytes: %d bytes, %d shown", len(want), j.ResultBytes, len(j.Result))
		}
	}

	for range 8 {
		id := completeJob(t, n, 5<<20)
		if j := show(id); j.State != "completed" || j.ResultGone != "" {
			t.Errorf("the newest result: %s, gone %q", j.State, j.ResultGone)
		}
	}
	for id, want := range results {
		j, evicted := show(id), len(want) > job.MaxInlineResult
		if j.State != "completed" || (j.ResultGone == "result_evicted") != evicted || j.ResultBytes != int64(len(want)) {
			t.Errorf("after newer results: %s, result %q of %d bytes, want %d", j.State, j.ResultGone, j.ResultBytes, len(want))
		}
		_, _, err := readParts(t, n, "job-result", id)
		if text := fmt.Sprint(err); evicted != strings.Contains(text, "result_evicted") {
			t.Errorf("evicted %t: %v", evicted, err)
		}
		status, _, body := getContent(t, n, "/v1/jobs/"+id+"/result", "")
		if evicted != (status == http.StatusGone) || evicted != strings.Contains(string(body), "'yardmaster retention set results.bytes=") {
			t.Errorf("evicted %t over HTTP: %d, %.200s", evicted, status, body)
		}
	}
}
