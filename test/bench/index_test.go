package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// searchNode returns a node that gives these replies to searches in turn, and the last one from then on.
func searchNode(t *testing.T, replies ...string) *procs.Node {
	next := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply := replies[min(next, len(replies)-1)]
		next++
		if r.URL.Path != "/v1/jobs/find" || reply == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, reply)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return &procs.Node{Name: "n1", HTTP: strings.TrimPrefix(s.URL, "http://")}
}

// reply returns a reply with a job in a state, none if that is "".
func reply(t *testing.T, state string, ended time.Time) string {
	var found api.FoundJobs
	if state != "" {
		found.Jobs = []api.Job{{State: state, Ended: &ended}}
	}
	text, err := json.Marshal(found)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLagSearches checks that a job counts from the first search that finds it, and its end from the
// first that finds it completed.
func TestLagSearches(t *testing.T) {
	ended := time.Now().Add(-time.Hour)
	n := searchNode(t, reply(t, "", ended), reply(t, "active", ended), reply(t, "active", ended), reply(t, "completed", ended))
	s := &lagSearches{ctx: t.Context(), node: n}
	began := time.Now()
	s.start([]byte(`{"id":"0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"}`))
	s.running.Wait()
	took := ms(time.Since(began))
	if s.err != nil || len(s.accepted) != 1 || len(s.ended) != 1 {
		t.Fatalf("error %v, accepted %v, ended %v", s.err, s.accepted, s.ended)
	}
	// The job is found after one pause, and completed after three.
	if pause := ms(lagPause); s.accepted[0] < pause || s.accepted[0] > took-2*pause {
		t.Errorf("accepted after %v of %v ms", s.accepted[0], took)
	}
	if hour := ms(time.Hour); s.ended[0] < hour || s.ended[0] > hour+took+1000 {
		t.Errorf("ended after %v ms", s.ended[0])
	}
}

// TestLagSearches_Fails checks that a search which is refused fails the round.
func TestLagSearches_Fails(t *testing.T) {
	s := &lagSearches{ctx: t.Context(), node: searchNode(t, "")}
	s.start([]byte(`{"id":"0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"}`))
	s.running.Wait()
	if s.err == nil || !strings.Contains(s.err.Error(), "503") || len(s.accepted) > 0 {
		t.Errorf("error %v, accepted %v", s.err, s.accepted)
	}
}

// TestPageRound checks that queries which should find jobs and find none fail, and the reverse.
func TestPageRound(t *testing.T) {
	for _, c := range []struct {
		state string
		empty bool
		ok    bool
	}{{"failed", false, true}, {"", false, false}, {"", true, true}, {"failed", true, false}} {
		p := &pages{cl: &benchCluster{Cluster: &procs.Cluster{Nodes: []*procs.Node{searchNode(t, reply(t, c.state, time.Now()))}}}, random: rand.New(rand.NewPCG(1, 2))}
		k := pageKind{empty: c.empty, query: func(*pages) string { return "" }}
		var r round
		err := perform(t.Context(), "", func(t *task) { r = p.round(t, k) })
		if (err == nil) != c.ok || c.ok && (r.value <= 0 || r.p99 < r.value) {
			t.Errorf("%q, empty %t: error %v, %+v", c.state, c.empty, err, r)
		}
	}
}

// TestPageFields checks that the records of jobs are valid, and have many values.
func TestPageFields(t *testing.T) {
	functions, keys, tags := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for i := range 10_000 {
		body := jobBody("", pageFields(i), int64(i))
		var record struct {
			Function string
			LimitKey string `json:"limit_key"`
			Tags     []string
		}
		if err := json.Unmarshal(body, &record); err != nil || len(body) != bodySize || len(record.Tags) != 2 {
			t.Fatalf("%s, %d bytes: %v", body, len(body), err)
		}
		functions[record.Function], keys[record.LimitKey], tags[record.Tags[0]+record.Tags[1]] = true, true, true
	}
	if len(functions) != pageFunctions || len(keys) < 9000 || len(tags) < 5000 {
		t.Errorf("%d functions, %d keys, %d pairs of tags", len(functions), len(keys), len(tags))
	}
}
