package clustertest_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// clientContent checks that the Go client reads results and params that do not fit into a
// frame, at any node.
func clientContent(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0].Node().Addresses(), cl.Members[1].Node().Addresses()
	c, err := client.Open(shortContext(t), client.Options{Nodes: []string{b.Overhop}, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cl.Members[0].AddQueue(t, "content", 0)

	for _, size := range []int{100, 9 << 20, 12 << 20} {
		id, err := c.Enqueue(shortContext(t), client.Spec{Queue: "content", Function: "demo#big", Params: map[string]int{"bytes": size}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // when it ends, and after it has ended
			result, err := c.Wait(shortContext(t), id)
			var text string
			if err == nil {
				err = result.Decode(&text)
			}
			if err != nil || len(text) != size || strings.Trim(text, "x") != "" {
				t.Errorf("a result of %d bytes: %d bytes, %v", size, len(text), err)
			}
		}
	}

	const id = "9ac5cfa8-58fd-4b53-b0a5-7b1b1a3eb3c6"
	large := strings.Repeat("ü€", 4<<20) // 20 MiB
	response, err := http.Post("http://"+a.HTTP+"/v1/queues/content/jobs", "application/json", strings.NewReader(`{"id":"`+id+`","delay_ms":86400000,"function":"measure","params":{"text":"`+large+`"}}`))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		t.Fatalf("enqueue: %s", response.Status)
	}
	var params struct {
		Text string `json:"text"`
	}
	if err := c.Params(shortContext(t), "content:"+id, &params); err != nil || params.Text != large {
		t.Errorf("params: %d bytes of %d, %v", len(params.Text), len(large), err)
	}
	work := c.Worker()
	work.Handle("content", "measure", func(_ context.Context, info *client.JobInfo) (any, error) {
		err := info.Decode(&params)
		return len(params.Text), err
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- work.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	params.Text = ""
	if _, err := c.Jobs().Set(shortContext(t), "content:"+id, client.JobSettings{Now: true}); err != nil {
		t.Fatal(err)
	}
	var length int
	result, err := c.Wait(shortContext(t), "content:"+id)
	if err == nil {
		err = result.Decode(&length)
	}
	if err != nil || length != len(large) {
		t.Errorf("the worker got %d bytes of %d, %v", length, len(large), err)
	}
	var refused *client.Error
	if err := c.Params(shortContext(t), "elsewhere:"+id, &params); !errors.As(err, &refused) || refused.Code != "JOB_NOT_FOUND" {
		t.Errorf("params of an unknown job: %v", err)
	}
}
