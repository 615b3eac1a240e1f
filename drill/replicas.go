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
)

// replica is what one node's disk holds of a stream.
type replica struct {
	first, last uint64
	sums        map[uint64][sha256.Size]byte // of each message: subject, header, data
	subjects    map[uint64]string
	latest      map[string]uint64 // the last message of each subject
}

// readReplicas reads the streams of a data directory that no node uses now, with
// a server of NATS' own that stands alone. Into copied, an empty directory that
// the caller removes, it copies what it opens.
func readReplicas(ctx context.Context, dir, copied string) (streams map[string]*replica, err error) {
	below := filepath.Join("jetstream", "YARD", "streams")
	err = os.CopyFS(filepath.Join(copied, below), os.DirFS(filepath.Join(dir, "nats", below)))
	if err == nil {
		err = standAlone(filepath.Join(copied, below))
	}
	if err != nil {
		return nil, fmt.Errorf("open the streams in %s: %w", dir, err)
	}
	opts := &server.Options{ServerName: "reader", DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: copied,
		JetStreamMaxStore: 1 << 40, JetStreamMaxMemory: 64 << 20, DisableJetStreamBanner: true}
	account := server.NewAccount("YARD")
	opts.Accounts = []*server.Account{account}
	opts.Users = []*server.User{{Username: "reader", Password: "reader", Account: account}}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("open the streams in %s: %w", dir, err)
	}
	srv.Start()
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	if !srv.ReadyForConnections(30 * time.Second) {
		return nil, fmt.Errorf("open the streams in %s: no server after 30 s", dir)
	}
	there, err := srv.LookupAccount("YARD")
	if err != nil {
		return nil, err
	}
	if err := there.EnableJetStream(nil, nil); err != nil {
		return nil, fmt.Errorf("open the streams in %s: %w", dir, err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(srv), nats.UserInfo("reader", "reader"))
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	streams = make(map[string]*replica)
	list := js.StreamNames(ctx)
	for name := range list.Name() {
		if streams[name], err = readReplica(ctx, js, name); err != nil {
			return nil, fmt.Errorf("read %s in %s: %w", name, dir, err)
		}
	}
	return streams, list.Err()
}

// standAlone has the streams of a directory be of one replica: a server without
// others opens no other ones.
func standAlone(streams string) error {
	metas, err := filepath.Glob(filepath.Join(streams, "*", "meta.inf"))
	if err == nil && len(metas) == 0 {
		err = errors.New("there are none")
	}
	for _, path := range metas {
		text, failed := os.ReadFile(path)
		if failed != nil {
			return failed
		}
		text = replicas.ReplaceAll(text, []byte(`"num_replicas":1`))
		key := sha256.Sum256([]byte(filepath.Base(filepath.Dir(path))))
		sum, failed := highwayhash.New64(key[:])
		if failed != nil {
			return failed
		}
		sum.Write(text)
		err = errors.Join(err, os.WriteFile(path, text, 0o600),
			os.WriteFile(filepath.Join(filepath.Dir(path), "meta.sum"), []byte(hex.EncodeToString(sum.Sum(nil))), 0o600))
	}
	return err
}

var replicas = regexp.MustCompile(`"num_replicas":\d+`)

func readReplica(ctx context.Context, js jetstream.JetStream, name string) (*replica, error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	state := stream.CachedInfo().State
	r := newReplica(state.FirstSeq, state.LastSeq)
	for next := state.FirstSeq; state.Msgs > 0 && next <= state.LastSeq; {
		m, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		for _, part := range [][]byte{[]byte(m.Subject), headerText(m.Header), m.Data} {
			fmt.Fprintf(sum, "%d ", len(part))
			sum.Write(part)
		}
		r.add(m.Sequence, m.Subject, [sha256.Size]byte(sum.Sum(nil)))
		next = m.Sequence + 1
	}
	return r, nil
}

func newReplica(first, last uint64) *replica {
	return &replica{first: first, last: last, sums: map[uint64][sha256.Size]byte{}, subjects: map[uint64]string{}, latest: map[string]uint64{}}
}

func (r *replica) add(seq uint64, subject string, sum [sha256.Size]byte) {
	r.sums[seq], r.subjects[seq], r.latest[subject] = sum, subject, max(r.latest[subject], seq)
}

// outdated tells whether a message is one of a bucket, and its key has a later
// one: a server that is killed between the two steps of storing that one keeps
// both.
func (r *replica) outdated(name string, seq uint64) bool {
	return strings.HasPrefix(name, "KV_") && r.latest[r.subjects[seq]] > seq
}

func headerText(h nats.Header) (text []byte) {
	for _, k := range slices.Sorted(maps.Keys(h)) {
		text = fmt.Appendf(text, "%s: %q\n", k, h[k])
	}
	return text
}

// sameReplicas lists what two nodes' disks hold differently of a stream. Where
// one ends earlier, what a later message takes away may still be there.
func sameReplicas(name string, a, b *replica) (wrong []string) {
	for seq := max(a.first, b.first); seq <= min(a.last, b.last) && len(wrong) < 5; seq++ {
		x, hasX := a.sums[seq]
		y, hasY := b.sums[seq]
		switch {
		case hasX && a.outdated(name, seq) || hasY && b.outdated(name, seq):
		case hasX != hasY && a.last == b.last:
			wrong = append(wrong, fmt.Sprintf("%s %d is missing from one of two replicas", name, seq))
		case hasX && hasY && x != y:
			wrong = append(wrong, fmt.Sprintf("%s %d is another message on two replicas", name, seq))
		}
	}
	return wrong
}

// holes counts what is missing from between the first and the last message.
func (r *replica) holes() int {
	if len(r.sums) == 0 {
		return 0
	}
	return int(r.last-r.first+1) - len(r.sums)
}

// mayLag is how many messages a replica may lack that were stored just before
// the last kill: history goes on, and so do what nodes say of themselves.
const mayLag = 16

// fullCopies is how many members keep a stream, where there are as many.
const fullCopies = 3

// heldBy is a node's replica of a stream.
type heldBy struct {
	node string
	*replica
}

// replicas holds the disks of all nodes against each other. None must run.
func (s *Stage) replicas(ctx context.Context, nodes []*Node) error {
	held := map[string][]heldBy{}
	for _, n := range nodes {
		copied := filepath.Join(s.Dir, n.Name+"-copied")
		streams, err := readReplicas(ctx, n.DataDir, copied)
		err = errors.Join(err, os.RemoveAll(copied))
		if err != nil {
			return err
		}
		for name, r := range streams {
			held[name] = append(held[name], heldBy{n.Name, r})
		}
	}
	messages, behind := 0, uint64(0)
	for name, all := range held {
		for _, wrong := range compared(name, all, min(fullCopies, len(nodes))) {
			s.Promise(false, "%s", wrong)
		}
		first, last := all[0].last, all[0].last // to end
		for _, r := range all {
			messages += len(r.sums)
			first, last = min(first, r.last), max(last, r.last)
		}
		behind = max(behind, last-first)
	}
	s.Promise(behind <= mayLag, "a replica lacks the last %d messages of a stream, though all is healed and drained", behind)
	s.Figure("replicas on the nodes' disks", fmt.Sprintf("%d messages compared; the last that one lacks at the kill: %d", messages, behind))
	return nil
}

// compared lists what is amiss in a stream that so many nodes should keep.
func compared(name string, all []heldBy, copies int) (wrong []string) {
	if len(all) != copies {
		var at []string
		for _, r := range all {
			at = append(at, r.node)
		}
		wrong = append(wrong, fmt.Sprintf("%s lies at %v, not at %d nodes", name, at, copies))
	}
	for i, r := range all {
		if n := r.holes(); n > 0 && (strings.HasPrefix(name, "YARD_JOBS_") || name == "YARD_EVENTS") {
			wrong = append(wrong, fmt.Sprintf("%d messages are missing from the middle of %s at %s", n, name, r.node))
		}
		next := all[(i+1)%len(all)]
		for _, text := range sameReplicas(name, r.replica, next.replica) {
			wrong = append(wrong, fmt.Sprintf("%s and %s: %s", r.node, next.node, text))
		}
	}
	return wrong
}
