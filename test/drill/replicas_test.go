package drill

import (
	"crypto/sha256"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

func TestSameReplicas(t *testing.T) {
	of := func(first uint64, texts ...string) *replica {
		r := newReplica(first, first+uint64(len(texts))-1)
		for i, text := range texts {
			if text != "" {
				subject, _, _ := strings.Cut(text, "=")
				r.add(first+uint64(i), subject, sha256.Sum256([]byte(text)))
			}
		}
		return r
	}
	whole := of(1, "a", "b", "c", "d")
	for _, c := range []struct {
		name  string
		other *replica
		holes int
		wrong string
	}{
		{"the same", of(1, "a", "b", "c", "d"), 0, ""},
		{"begins later", of(3, "c", "d"), 0, ""},
		{"ends earlier", of(1, "a", "b", "c"), 0, ""},
		{"another message", of(1, "a", "x", "c"), 0, "2 differs"},
		{"a hole", of(1, "a", "", "c", "d"), 1, "2, subject b, is missing from the second"},
		{"a gap, and lagging", of(1, "a", "", "c"), 1, ""}, // found by the check of holes
	} {
		got := strings.Join(diffReplicas("lane", nil, whole, c.other), "; ")
		if (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) || c.other.holes() != c.holes {
			t.Errorf("%s: %q, %d holes", c.name, got, c.other.holes())
		}
	}
	bucket := of(1, "k=1", "l=1", "k=2")
	for _, c := range []struct {
		name  string
		other *replica
		wrong bool
	}{
		{"an old value is gone", of(1, "", "l=1", "k=2"), false},
		{"a value is gone", of(1, "k=1", "", "k=2"), true},
	} {
		if got := diffReplicas("KV_YARD_QUEUES", nil, bucket, c.other); (len(got) > 0) != c.wrong {
			t.Errorf("bucket, %s: %q", c.name, got)
		}
		if got := diffReplicas("YARD_JOBS_0", nil, bucket, c.other); len(got) == 0 {
			t.Errorf("lane, %s: no difference reported", c.name)
		}
	}
}

// TestCompared checks the number of replicas: three of five nodes must have one, and all
// of three.
func TestCompared(t *testing.T) {
	copyOf := func(node string, sums ...byte) nodeReplica {
		r := newReplica(1, uint64(len(sums)))
		for i, sum := range sums {
			r.add(uint64(i+1), "subject", [32]byte{sum})
		}
		return nodeReplica{node, r}
	}
	hole := copyOf("n3", 1, 2, 3)
	delete(hole.checksums, 2)
	for want, all := range map[string][]nodeReplica{
		"": {copyOf("n1", 1, 2, 3), copyOf("n3", 1, 2, 3), copyOf("n5", 1, 2)},
		"YARD_JOBS_0 has replicas on [n1 n2], not on 3 nodes":         {copyOf("n1", 1), copyOf("n2", 1)},
		"1 messages are missing from the middle of YARD_JOBS_0 on n3": {copyOf("n1", 1, 2, 3), copyOf("n2", 1, 2, 3), hole},
		"n1 and n2: YARD_JOBS_0 2 differs between two replicas":       {copyOf("n1", 1, 2), copyOf("n2", 1, 9), copyOf("n3", 1, 2)},
		"YARD_JOBS_0 has replicas on [n1 n2 n3 n4], not on 3 nodes":   {copyOf("n1", 1), copyOf("n2", 1), copyOf("n3", 1), copyOf("n4", 1)},
		"n3 and n1: YARD_JOBS_0 1 differs between two replicas":       {copyOf("n1", 1), copyOf("n2", 1), copyOf("n3", 2)},
	} {
		if got := strings.Join(diffNodes("YARD_JOBS_0", nil, all, 3), "; "); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestRemovedBefore checks which messages only some replicas may have: those that were
// removed before all nodes were killed, except bodies that a dead letter needs.
func TestRemovedBefore(t *testing.T) {
	const body = "yard.blob.job.1-a.0"
	held := &heldMessages{first: 2, deleted: map[uint64]bool{3: true}, needed: map[string]bool{"job.1-b": true}}
	for _, c := range []struct {
		name    string
		held    *heldMessages
		seq     uint64
		subject string
		wrong   bool
	}{
		{"evicted", held, 1, "yard.results", false},
		{"removed", held, 3, body, false},
		{"kept", held, 2, "yard.results", true},
		{"newer", held, 4, body, true},
		{"a body that is needed", held, 3, "yard.blob.job.1-b.0", true},
		{"not known to the leader", nil, 1, "yard.results", true},
	} {
		with, without := newReplica(1, 5), newReplica(1, 5)
		with.add(c.seq, c.subject, [32]byte{1})
		for _, all := range [][2]*replica{{with, without}, {without, with}} {
			if got := diffReplicas("YARD_RESULTS", c.held, all[0], all[1]); (len(got) > 0) != c.wrong {
				t.Errorf("%s: %q", c.name, got)
			}
		}
		other := newReplica(1, 5)
		other.add(c.seq, c.subject, [32]byte{2})
		if got := diffReplicas("YARD_RESULTS", c.held, with, other); len(got) == 0 {
			t.Errorf("%s: different content is not reported", c.name)
		}
	}
}

// TestNeededBody finds the body in a dead letter as a node writes it.
func TestNeededBody(t *testing.T) {
	for letter, want := range map[string]string{
		`{"id":"x","job":{"blob":{"name":"owner.1-a","chunks":1,"size":99,"sha256":"00"}}}`: "owner.1-a",
		`{"id":"x","job":{"function":"f"}}`:                                                 "",
		`{"id":"x","record":"bm8ganNvbg=="}`:                                                "",
		`no json`:                                                                           "",
	} {
		if got := neededBody([]byte(letter)); got != want {
			t.Errorf("%s: %q, want %q", letter, got, want)
		}
	}
}

// TestReadReplicas_Evicted reads the files of a running server, as after a kill: they still
// have what it evicted, but not what was purged.
func TestReadReplicas_Evicted(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	opts := &server.Options{ServerName: "writer", DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: filepath.Join(dir, "nats"), DisableJetStreamBanner: true}
	account := server.NewAccount("YARD")
	opts.Accounts = []*server.Account{account}
	opts.Users = []*server.User{{Username: "writer", Password: "writer", Account: account}}
	srv := must.Get(server.NewServer(opts))
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	must.Do(must.Get(srv.LookupAccount("YARD")).EnableJetStream(nil, nil))
	nc := must.Get(nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("writer", "writer")))
	t.Cleanup(nc.Close)
	js := must.Get(jetstream.New(nc))
	config := jetstream.StreamConfig{Name: "LETTERS", Subjects: []string{"letters"}, MaxMsgs: 10}
	stream := must.Get(js.CreateStream(t.Context(), config))
	for range 20 {
		must.Get(js.Publish(t.Context(), "letters", nil))
	}
	config.MaxMsgs = 100 // otherwise the reader evicts them again
	must.Get(js.UpdateStream(t.Context(), config))
	evicted := readReplicas(t.Context(), dir, filepath.Join(copied, "1"))["LETTERS"]
	must.Do(stream.Purge(t.Context(), jetstream.WithPurgeSequence(13)))
	must.Get(js.Publish(t.Context(), "letters", nil)) // so that the state file is outdated, as after most kills
	purged := readReplicas(t.Context(), dir, filepath.Join(copied, "2"))["LETTERS"]
	if evicted.first != 1 || len(evicted.checksums) != 20 || purged.first != 1 || len(purged.checksums) != 19 {
		t.Errorf("read %d messages from %d on, and %d from %d on after a purge", len(evicted.checksums), evicted.first, len(purged.checksums), purged.first)
	}
	purged.last = evicted.last // without the message that only it has
	held := &heldMessages{first: must.Get(stream.Info(t.Context())).State.FirstSeq}
	if wrong := diffReplicas("LETTERS", held, evicted, purged); held.first != 13 || len(wrong) > 0 {
		t.Errorf("the stream begins with %d: %q", held.first, wrong)
	}
	if wrong := diffReplicas("LETTERS", nil, evicted, purged); len(wrong) != 2 {
		t.Errorf("11 and 12 must differ: %q", wrong)
	}
}
