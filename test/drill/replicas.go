package drill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// replica is the content of one node's replica of a stream.
type replica struct {
	first, last uint64
	checksums   map[uint64][sha256.Size]byte // of subject, header and data of each message
	subjects    map[uint64]string
	latest      map[string]uint64 // sequence of the last message of each subject
	bodies      map[uint64]string // of dead letters with large bodies: the names of these
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
		if body := neededBody(m.Data); name == subjects.StreamDLQ && body != "" {
			r.bodies[m.Sequence] = body
		}
		next = m.Sequence + 1
	}
	return r
}

// neededBody returns the name of the body that a dead letter needs, "" if it contains its
// body.
func neededBody(letter []byte) string {
	var message api.DeadLetterMessage
	var record struct{ Blob job.Blob }
	if json.Unmarshal(letter, &message) != nil || json.Unmarshal(message.RecordBody(), &record) != nil {
		return ""
	}
	return record.Blob.Name
}

func newReplica(first, last uint64) *replica {
	return &replica{first: first, last: last, checksums: map[uint64][sha256.Size]byte{}, subjects: map[uint64]string{}, latest: map[string]uint64{}, bodies: map[uint64]string{}}
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

// heldMessages is what a stream held before all nodes were killed, as its leader knew it.
type heldMessages struct {
	first   uint64
	deleted map[uint64]bool // after the first, unless messages are only removed in order
	needed  map[string]bool // names of the bodies that dead letters need, of the stream of bodies
}

// removed reports whether a message was removed or evicted before all nodes were killed, so
// that it does not matter which replicas have it in their files. nats-server writes no
// record of a message that it evicts, or removes because a Raft snapshot says so. After an
// unclean stop it finds such a message again, as long as it keeps the file for others, and
// removes it again once it has read the snapshot, which the reader of the drill does not. A
// body that a dead letter needs has not been removed, whatever the leader says. Without the
// leader's knowledge, held is nil, and no message has been removed.
func (held *heldMessages) removed(seq uint64, subject string) bool {
	if held == nil || seq >= held.first && !held.deleted[seq] {
		return false
	}
	name, isBody := strings.CutPrefix(subject, subjects.Blobs+".")
	return !isBody || !held.needed[name[:max(0, strings.LastIndexByte(name, '.'))]]
}

// heldTimeout limits the wait for a stream that has no leader.
const heldTimeout = 5 * time.Second

// readHeld returns what each stream holds, by its name. It omits streams without a
// leader.
func (h *Harness) readHeld(ctx context.Context) (map[string]*heldMessages, error) {
	nc, err := nats.Connect(h.URLs(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	streams := make(map[string]*heldMessages)
	for _, name := range subjects.Streams(len(h.Nodes)) {
		limited, cancel := context.WithTimeout(ctx, heldTimeout)
		var state jetstream.StreamState
		err := until(limited, "read the state of "+name, func() (err error) {
			if state, err = stateOf(limited, js, name); errors.Is(err, jetstream.ErrStreamNotFound) {
				err = nil
			}
			return err
		})
		cancel()
		if err != nil {
			h.Logf("%v", err)
			continue
		}
		held := &heldMessages{first: state.FirstSeq, deleted: make(map[uint64]bool), needed: make(map[string]bool)}
		if !removedInOrder(name) {
			for _, seq := range state.Deleted {
				held.deleted[seq] = true
			}
		}
		streams[name] = held
	}
	return streams, nil
}

// removedInOrder reports whether messages of a stream are only ever removed from its
// beginning, so that a message that the leader lacks after its first is lost.
func removedInOrder(name string) bool {
	_, isLane := subjects.ParseLaneStream(name)
	return isLane || name == subjects.StreamEvents || name == subjects.StreamResults || name == subjects.StreamRelocated
}

// stateOf returns the state of a stream as its leader knows it, with the sequences of
// deleted messages.
func stateOf(ctx context.Context, js jetstream.JetStream, name string) (jetstream.StreamState, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return jetstream.StreamState{}, err
	}
	info, err := stream.Info(ctx, jetstream.WithDeletedDetails(true))
	switch {
	case err != nil:
		return jetstream.StreamState{}, err
	case info.Cluster != nil && info.Cluster.Leader == "":
		return jetstream.StreamState{}, errors.New("no leader")
	}
	return info.State, nil
}

// diffReplicas returns the differences between two replicas of a stream. If one
// ends earlier, it may still have messages that a later message removes.
func diffReplicas(name string, held *heldMessages, a, b *replica) (wrong []string) {
	for seq := max(a.first, b.first); seq <= min(a.last, b.last) && len(wrong) < 5; seq++ {
		sumA, inA := a.checksums[seq]
		sumB, inB := b.checksums[seq]
		subject, missing := b.subjects[seq], "first"
		if inA {
			subject, missing = a.subjects[seq], "second"
		}
		switch {
		case inA && a.outdated(name, seq) || inB && b.outdated(name, seq):
		case inA != inB && a.last == b.last && !held.removed(seq, subject):
			wrong = append(wrong, fmt.Sprintf("%s %d, subject %s, is missing from the %s of two replicas", name, seq, subject, missing))
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
// exited. held is what they held before that, by stream.
func (h *Harness) checkReplicas(nodes []*Node, held map[string]*heldMessages) {
	onDisk := map[string][]nodeReplica{}
	for _, n := range nodes {
		copied := filepath.Join(h.Dir, n.Name+"-copied")
		streams := readReplicas(h.Ctx, n.DataDir, copied)
		must.Do(os.RemoveAll(copied))
		for name, r := range streams {
			onDisk[name] = append(onDisk[name], nodeReplica{n.Name, r})
		}
	}
	if bodies := held[subjects.StreamBlobs]; bodies != nil {
		for _, r := range onDisk[subjects.StreamDLQ] {
			for seq, name := range r.bodies {
				if !held[subjects.StreamDLQ].removed(seq, r.subjects[seq]) {
					bodies.needed[name] = true
				}
			}
		}
	}
	messages, behind := 0, uint64(0)
	for name, all := range onDisk {
		for _, wrong := range diffNodes(name, held[name], all, min(maxReplicas, len(nodes))) {
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
func diffNodes(name string, held *heldMessages, all []nodeReplica, count int) (wrong []string) {
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
		for _, text := range diffReplicas(name, held, r.replica, next.replica) {
			wrong = append(wrong, fmt.Sprintf("%s and %s: %s", r.node, next.node, text))
		}
	}
	return wrong
}
