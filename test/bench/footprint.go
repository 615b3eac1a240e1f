package bench

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

// footprint is the resource usage of a node's process.
type footprint struct {
	resident int64 // resident memory in bytes
	inUse    int64 // bytes of Go's heap and stacks in use after a collection
	files    int   // open descriptors
}

// perWorker returns the growth since before, divided by n workers.
func (f footprint) perWorker(before footprint, n int) (residentKiB, inUseKiB, files float64) {
	per := func(grown int64) float64 { return float64(grown) / float64(n) }
	return per(f.resident-before.resident) / 1024, per(f.inUse-before.inUse) / 1024, per(int64(f.files - before.files))
}

// footprintOf triggers garbage collections in a node and reads its footprint. There are two,
// because a sync.Pool, such as that of JetStream's blocks, keeps what it has for one.
func footprintOf(t *task, n *procs.Node) (f footprint) {
	for range 2 {
		f.inUse = must.Get(inUseOf(t, n))
	}
	http.DefaultClient.CloseIdleConnections()
	p := procstat.PID(n.PID())
	f.resident, f.files = p.Memory(), p.Descriptors()
	return f
}

// inUseOf triggers a garbage collection in a node and returns the size of its heap and stacks.
func inUseOf(ctx context.Context, n *procs.Node) (sum int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Profile+"/debug/pprof/heap?gc=1&debug=1", nil)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	return readInUse(answer.Body)
}

// readInUse adds up heap and stacks from the text form of Go's heap profile, which
// ends with lines such as "# HeapInuse = 123" and "# Stack = 45 / 67".
func readInUse(profile io.Reader) (sum int64, err error) {
	found := 0
	lines := bufio.NewScanner(profile)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "# "), " = ")
		if !ok || name != "HeapInuse" && name != "Stack" {
			continue
		}
		value, _, _ = strings.Cut(value, " ")
		bytes, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += bytes
		found++
	}
	if found != 2 && lines.Err() == nil {
		return 0, errors.New("the profile has no HeapInuse or no Stack")
	}
	return sum, lines.Err()
}
