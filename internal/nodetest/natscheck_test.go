package nodetest_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// verdict is what a check of nats comes to, as monitoring programs read it.
type verdict struct {
	name      string
	bad, good []string
	figures   []string
}

func (v *verdict) ok(format string, args ...any) {
	v.good = append(v.good, "OK:"+fmt.Sprintf(format, args...))
}
func (v *verdict) crit(format string, args ...any) {
	v.bad = append(v.bad, "Crit:"+fmt.Sprintf(format, args...))
}

func (v *verdict) figure(format string, args ...any) {
	v.figures = append(v.figures, fmt.Sprintf(format, args...))
}

func (v *verdict) String() string {
	state := "OK"
	if len(v.bad) > 0 {
		state = "CRITICAL"
	}
	text := strings.Join(append(append([]string{state, v.name}, v.bad...), v.good...), " ")
	if len(v.figures) > 0 {
		text += " | " + strings.Join(v.figures, " ")
	}
	return text
}

// checkStream goes by what the stream's metadata says.
func (s *standIn) checkStream(ctx context.Context, g given) (string, error) {
	name := g.flags["--stream"]
	info, err := s.stream(ctx, name)
	if err != nil {
		return "", err
	}
	v := &verdict{name: name}
	meta := func(key string) string { return info.Config.Metadata["io.nats.monitor."+key] }
	expected, err := strconv.Atoi(meta("peer-expect"))
	if err != nil {
		return "", err
	}
	lag, err := strconv.ParseUint(meta("peer-lag-critical"), 10, 64)
	if err != nil {
		return "", err
	}
	seen, err := time.ParseDuration(meta("peer-seen-critical"))
	if err != nil {
		return "", err
	}
	switch there := len(info.Cluster.Replicas) + 1; {
	case info.Cluster.Leader == "":
		v.crit("No leader")
	case there != expected:
		v.crit("Expected %d replicas got %d", expected, there)
	default:
		v.ok("%d peers", there)
		offline, lagged, silent := 0, 0, 0
		for _, r := range info.Cluster.Replicas {
			offline, lagged, silent = offline+one(r.Offline), lagged+one(r.Lag > lag), silent+one(r.Active > seen)
		}
		v.tell(offline, "", "%d replicas offline")
		v.tell(lagged, "replicas are current", "%d replicas lagged")
		v.tell(silent, "replicas are active", "%d replicas inactive")
	}
	v.ok("%d sources", len(info.Sources))
	v.figure("sources=%d", len(info.Sources))
	if meta("lag-critical") != "" || meta("seen-critical") != "" {
		v.crit("not mirrored") // these two are of mirrors and sources
	}
	return v.String(), nil
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}

func (v *verdict) tell(bad int, well, ill string) {
	switch {
	case bad > 0:
		v.crit(ill, bad)
	case well != "":
		v.ok("%s", well)
	}
}

func (s *standIn) checkKV(ctx context.Context, g given) (string, error) {
	bucket, key := g.flags["--bucket"], g.flags["--key"]
	v := &verdict{name: bucket}
	kv, err := s.js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		v.crit("bucket %s not found", bucket)
		return v.String(), nil
	}
	if err != nil {
		return "", err
	}
	v.ok("bucket %s", bucket)
	status, err := kv.Status(ctx)
	if err != nil {
		return "", err
	}
	v.figure("values=%d", status.Values())
	if _, err := kv.Get(ctx, key); errors.Is(err, jetstream.ErrKeyNotFound) {
		v.crit("key %s not found", key)
	} else if err != nil {
		return "", err
	} else {
		v.ok("key %s found", key)
	}
	info, err := s.stream(ctx, "KV_"+bucket)
	if err != nil {
		return "", err
	}
	v.figure("bytes=%dB replicas=%d", info.State.Bytes, info.Config.Replicas)
	return v.String(), nil
}

// checkJetStream looks at the account's storage and at every stream's copies,
// with the limits that nats has when none are given.
func (s *standIn) checkJetStream(ctx context.Context, _ given) (string, error) {
	account, err := s.js.AccountInfo(ctx)
	if err != nil {
		return "", err
	}
	streams, err := s.streams(ctx)
	if err != nil {
		return "", err
	}
	states := map[string]int{}
	for _, i := range streams {
		states[copies(i)]++
	}
	v := &verdict{name: "JetStream"}
	v.figure("memory=%dB memory_pct=%d%%;75;90 storage=%dB storage_pct=%d%%;75;90", account.Memory, share(account.Memory, account.Limits.MaxMemory),
		account.Store, share(account.Store, account.Limits.MaxStore))
	v.figure("streams=%d streams_pct=0%% consumers=%d consumers_pct=0%%", account.Streams, account.Consumers)
	v.figure("replicas_ok=%d replicas_no_leader=%d replicas_missing_replicas=%d replicas_lagged=%d;;200 replicas_not_seen=%d.0000s;;5.0000 replicas_fail=%d",
		states["ok"], states["no leader"], states["missing"], states["lagged"], states["not seen"], states["fail"])
	if ill := len(streams) - states["ok"]; ill > 0 {
		v.crit("%d unhealthy streams", ill)
	}
	return v.String(), nil
}

// copies says how a stream's copies are.
func copies(i *jetstream.StreamInfo) string {
	switch {
	case i.Config.Replicas == 1:
		return "ok"
	case i.Cluster == nil:
		return "fail"
	case i.Cluster.Leader == "":
		return "no leader"
	case len(i.Cluster.Replicas) != i.Config.Replicas-1:
		return "missing"
	}
	for _, r := range i.Cluster.Replicas {
		switch {
		case r.Offline:
			return "fail"
		case r.Active > 5*time.Second:
			return "not seen"
		case r.Lag > 200:
			return "lagged"
		}
	}
	return "ok"
}

// share is in percent; without a limit it is nothing.
func share(used uint64, limit int64) int {
	if limit <= 0 {
		return 0
	}
	return int(float64(used) / float64(limit) * 100)
}

func (s *standIn) checkRequest(ctx context.Context, g given) (string, error) {
	m := nats.NewMsg(g.flags["--subject"])
	m.Data = []byte(g.flags["--payload"])
	v, began := &verdict{name: m.Subject}, time.Now()
	answer, err := s.nc.RequestMsgWithContext(ctx, m)
	v.figure("time=%.4fs", time.Since(began).Seconds())
	if err != nil {
		v.crit("could not send request: %v", err)
		return v.String(), nil
	}
	fits, err := regexp.MatchString(g.flags["--match-payload"], string(answer.Data))
	if !fits {
		v.crit("response does not match regexp")
	} else {
		v.ok("Valid response")
	}
	return v.String(), err
}

// serverReport asks the system account.
func (s *standIn) serverReport(ctx context.Context, _ given) (string, error) {
	_, err := s.nc.RequestWithContext(ctx, "$SYS.REQ.SERVER.PING.JSZ", []byte("{}"))
	if errors.Is(err, nats.ErrNoResponders) {
		return "nats: error: server request failed, ensure the account used has system privileges and appropriate permissions", nil
	}
	return "", errors.Join(err, errNotKnown)
}
