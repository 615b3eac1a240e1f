package drill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

// replica is the content of one node's replica of a stream.
type replica struct {
	first, last uint64
	checksums   map[uint64][sha256.Size]byte // of subject, header and data of each message
	subjects    map[uint64]string
	latest      map[string]uint64 // sequence of the last message of each subject
}

// readReplicas reads the streams in a data directory of a stopped node, through a
// standalone NATS server. It copies the files to copied, an empty directory that
// the caller removes, because the server may change them.
func readReplicas(ctx context.Context, dir, copied string) map[string]*replica {
	below := filepath.Join("jetstream", "YARD", "streams")
	must.Do(os.CopyFS(filepath.Join(copied, below), os.DirFS(filepath.Join(dir, "nats", below))))
	detachStreams(filepath.Join(copied, below))
	opts := &server.Options{ServerName: "reader", DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: copied,
		JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 64 << 20, DisableJetStreamBanner: true}
	account := server.NewAccount("YARD")
	opts.Accounts = []*server.Account{account}
	opts.Users = []*server.User{{Username: "reader", Password: "reader", Account: account}}
	srv := must.Get(server.NewServer(opts))
	srv.Start()
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	if !srv.ReadyForConnections(30 * time.Second) {
		must.Do(fmt.Errorf("open the streams in %s: no server after 30 s", dir))
	}
	must.Do(must.Get(srv.LookupAccount("YARD")).EnableJetStream(nil, nil))
	nc := must.Get(nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("reader", "reader")))
	defer nc.Close()
	js := must.Get(jetstream.New(nc))
	streams := make(map[string]*replica)
	list := js.StreamNames(ctx)
	for name := range list.Name() {
		streams[name] = scanReplica(ctx, js, name)
	}
	must.Do(list.Err())
	return streams
}

// detachStreams changes the configuration of the streams in a directory to one
// replica each: a standalone server does not open replicated streams.
func detachStreams(streams string) {
	metas := must.Get(filepath.Glob(filepath.Join(streams, "*", "meta.inf")))
	if len(metas) == 0 {
		must.Do(errors.New("there are no streams in " + streams))
	}
	for _, path := range metas {
		text := replicas.ReplaceAll(must.Get(os.ReadFile(path)), []byte(`"num_replicas":1`))
		key := sha256.Sum256([]byte(filepath.Base(filepath.Dir(path))))
		sum := must.Get(highwayhash.New64(key[:]))
		sum.Write(text)
		must.Do(os.WriteFile(path, text, 0o600))
		must.Do(os.WriteFile(filepath.Join(filepath.Dir(path), "meta.sum"), []byte(hex.EncodeToString(sum.Sum(nil))), 0o600))
	}
}

var replicas = regexp.MustCompile(`"num_replicas":\d+`)

// scanReplica reads all messages of a stream.
func scanReplica(ctx context.Context, js jetstream.JetStream, name string) *replica {
	stream := must.Get(js.Stream(ctx, name))
	state := stream.CachedInfo().State
	r := newReplica(state.FirstSeq, state.LastSeq)
	for next := state.FirstSeq; state.Msgs > 0 && next <= state.LastSeq; {
		m, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		must.Do(err)
		sum := sha256.New()
		for _, part := range [][]byte{[]byte(m.Subject), headerText(m.Header), m.Data} {
			fmt.Fprintf(sum, "%d ", len(part))
			sum.Write(part)
		}
		r.add(m.Sequence, m.Subject, [sha256.Size]byte(sum.Sum(nil)))
		next = m.Sequence + 1
	}
	return r
}

func newReplica(first, last uint64) *replica {
	return &replica{first: first, last: last, checksums: map[uint64][sha256.Size]byte{}, subjects: map[uint64]string{}, latest: map[string]uint64{}}
}

func (r *replica) add(seq uint64, subject string, sum [sha256.Size]byte) {
	r.checksums[seq], r.subjects[seq], r.latest[subject] = sum, subject, max(r.latest[subject], seq)
}

// outdated reports whether a message of a key-value bucket has a later one for the
// same key. A server that is killed while it stores the later one, in two steps,
// keeps both.
func (r *replica) outdated(name string, seq uint64) bool {
	return strings.HasPrefix(name, "KV_") && r.latest[r.subjects[seq]] > seq
}

func headerText(h nats.Header) (text []byte) {
	for _, k := range slices.Sorted(maps.Keys(h)) {
		text = fmt.Appendf(text, "%s: %q\n", k, h[k])
	}
	return text
}

// diffReplicas returns the differences between two replicas of a stream. If one
// ends earlier, it may still have messages that a later message removes.
func diffReplicas(name string, a, b *replica) (wrong []string) {
	for seq := max(a.first, b.first); seq <= min(a.last, b.last) && len(wrong) < 5; seq++ {
		sumA, inA := a.checksums[seq]
		sumB, inB := b.checksums[seq]
		switch {
		case inA && a.outdated(name, seq) || inB && b.outdated(name, seq):
		case inA != inB && a.last == b.last:
			which, subject := "first", b.subjects[seq]
			if inA {
				which, subject = "second", a.subjects[seq]
			}
			wrong = append(wrong, fmt.Sprintf("%s %d, subject %s, is missing from the %s of two replicas", name, seq, subject, which))
		case inA && inB && sumA != sumB:
			wrong = append(wrong, fmt.Sprintf("%s %d differs between two replicas", name, seq))
		}
	}
	return wrong
}

// holes returns the number of messages missing between the first and the last.
func (r *replica) holes() int {
	if len(r.checksums) == 0 {
		return 0
	}
	return int(r.last-r.first+1) - len(r.checksums)
}

// maxLag is how many of the last messages a replica may lack, because the cluster
// writes history and status until the final kill.
const maxLag = 16

// maxReplicas is the number of replicas of a stream in a cluster that has at least
// as many members.
const maxReplicas = 3

// nodeReplica is a replica and the node it was read from.
type nodeReplica struct {
	node string
	*replica
}

// checkReplicas compares the streams on the disks of all nodes, which must have
// exited.
func (h *Harness) checkReplicas(nodes []*Node) {
	held := map[string][]nodeReplica{}
	for _, n := range nodes {
		copied := filepath.Join(h.Dir, n.Name+"-copied")
		streams := readReplicas(h.Ctx, n.DataDir, copied)
		must.Do(os.RemoveAll(copied))
		for name, r := range streams {
			held[name] = append(held[name], nodeReplica{n.Name, r})
		}
	}
	messages, behind := 0, uint64(0)
	for name, all := range held {
		for _, wrong := range diffNodes(name, all, min(maxReplicas, len(nodes))) {
			h.Require(false, "%s", wrong)
		}
		first, last := all[0].last, all[0].last // lowest and highest last sequence
		for _, r := range all {
			messages += len(r.checksums)
			first, last = min(first, r.last), max(last, r.last)
		}
		behind = max(behind, last-first)
	}
	h.Require(behind <= maxLag, "a replica lacks the last %d messages of a stream although all faults are healed and all jobs have ended", behind)
	h.Figure("replicas on the nodes' disks", fmt.Sprintf("%d messages compared; a replica lacked at most the last %d at the kill", messages, behind))
}

// diffNodes returns the flaws of a stream that should have this number of replicas.
func diffNodes(name string, all []nodeReplica, count int) (wrong []string) {
	if len(all) != count {
		var nodes []string
		for _, r := range all {
			nodes = append(nodes, r.node)
		}
		wrong = append(wrong, fmt.Sprintf("%s has replicas on %v, not on %d nodes", name, nodes, count))
	}
	for i, r := range all {
		if n := r.holes(); n > 0 && (strings.HasPrefix(name, "YARD_JOBS_") || name == "YARD_EVENTS") {
			wrong = append(wrong, fmt.Sprintf("%d messages are missing from the middle of %s on %s", n, name, r.node))
		}
		next := all[(i+1)%len(all)]
		for _, text := range diffReplicas(name, r.replica, next.replica) {
			wrong = append(wrong, fmt.Sprintf("%s and %s: %s", r.node, next.node, text))
		}
	}
	return wrong
}
