package clustertest_test

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

// checkResult is the result of a check, in the format for monitoring programs.
type checkResult struct {
	name             string
	critical, passed []string
	figures          []string
}

func (v *checkResult) ok(format string, args ...any) {
	v.passed = append(v.passed, "OK:"+fmt.Sprintf(format, args...))
}
func (v *checkResult) crit(format string, args ...any) {
	v.critical = append(v.critical, "Crit:"+fmt.Sprintf(format, args...))
}

func (v *checkResult) figure(format string, args ...any) {
	v.figures = append(v.figures, fmt.Sprintf(format, args...))
}

func (v *checkResult) String() string {
	state := "OK"
	if len(v.critical) > 0 {
		state = "CRITICAL"
	}
	text := strings.Join(append(append([]string{state, v.name}, v.critical...), v.passed...), " ")
	if len(v.figures) > 0 {
		text += " | " + strings.Join(v.figures, " ")
	}
	return text
}

// checkStream checks a stream against its metadata.
func (s *natsCLI) checkStream(ctx context.Context, g cliArgs) (string, error) {
	name := g.flags["--stream"]
	info, err := s.stream(ctx, name)
	if err != nil {
		return "", err
	}
	v := &checkResult{name: name}
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
			offline, lagged, silent = offline+boolToInt(r.Offline), lagged+boolToInt(r.Lag > lag), silent+boolToInt(r.Active > seen)
		}
		v.report(offline, "", "%d replicas offline")
		v.report(lagged, "replicas are current", "%d replicas lagged")
		v.report(silent, "replicas are active", "%d replicas inactive")
	}
	v.ok("%d sources", len(info.Sources))
	v.figure("sources=%d", len(info.Sources))
	if meta("lag-critical") != "" || meta("seen-critical") != "" {
		v.crit("not mirrored") // these two apply to mirrors and sources
	}
	return v.String(), nil
}

func boolToInt(is bool) int {
	if is {
		return 1
	}
	return 0
}

func (v *checkResult) report(bad int, well, ill string) {
	switch {
	case bad > 0:
		v.crit(ill, bad)
	case well != "":
		v.ok("%s", well)
	}
}

func (s *natsCLI) checkKV(ctx context.Context, g cliArgs) (string, error) {
	bucket, key := g.flags["--bucket"], g.flags["--key"]
	v := &checkResult{name: bucket}
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

// checkJetStream checks the account's storage and the replicas of every stream, with the
// default limits of nats.
func (s *natsCLI) checkJetStream(ctx context.Context, _ cliArgs) (string, error) {
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
		states[replicaSummary(i)]++
	}
	v := &checkResult{name: "JetStream"}
	v.figure("memory=%dB memory_pct=%d%%;75;90 storage=%dB storage_pct=%d%%;75;90", account.Memory, percent(account.Memory, account.Limits.MaxMemory),
		account.Store, percent(account.Store, account.Limits.MaxStore))
	v.figure("streams=%d streams_pct=0%% consumers=%d consumers_pct=0%%", account.Streams, account.Consumers)
	v.figure("replicas_ok=%d replicas_no_leader=%d replicas_missing_replicas=%d replicas_lagged=%d;;200 replicas_not_seen=%d.0000s;;5.0000 replicas_fail=%d",
		states["ok"], states["no leader"], states["missing"], states["lagged"], states["not seen"], states["fail"])
	if ill := len(streams) - states["ok"]; ill > 0 {
		v.crit("%d unhealthy streams", ill)
	}
	return v.String(), nil
}

// replicaSummary describes the state of a stream's replicas.
func replicaSummary(i *jetstream.StreamInfo) string {
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

// percent returns used as a percentage of limit, 0 without a limit.
func percent(used uint64, limit int64) int {
	if limit <= 0 {
		return 0
	}
	return int(float64(used) / float64(limit) * 100)
}

func (s *natsCLI) checkRequest(ctx context.Context, g cliArgs) (string, error) {
	m := nats.NewMsg(g.flags["--subject"])
	m.Data = []byte(g.flags["--payload"])
	v, began := &checkResult{name: m.Subject}, time.Now()
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

// serverReport requires the system account.
func (s *natsCLI) serverReport(ctx context.Context, _ cliArgs) (string, error) {
	_, err := s.nc.RequestWithContext(ctx, "$SYS.REQ.SERVER.PING.JSZ", []byte("{}"))
	if errors.Is(err, nats.ErrNoResponders) {
		return "nats: error: server request failed, ensure the account used has system privileges and appropriate permissions", nil
	}
	return "", errors.Join(err, errUnknownDirective)
}
