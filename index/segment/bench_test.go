package segment

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

var benchDocuments = flag.Int("index-documents", 200_000, "number of documents that BenchmarkPage searches")

// benchDocument returns the n-th document of a yard that runs 5,000 jobs a second. One job of a
// hundred was delayed by up to three days.
func benchDocument(r *rand.Rand, n int) *job.Document {
	fn := r.IntN(200)
	d := &job.Document{
		Queue: fmt.Sprintf("queue-%d", fn%50), Function: fmt.Sprintf("function-%d", fn), State: job.Completed, LimitKey: fmt.Sprintf("cust-%d", r.IntN(100_000)),
		Tags: []string{fmt.Sprintf("tag-%d", r.IntN(100)), fmt.Sprintf("tag-%d", r.IntN(100))}, Params: []job.Label{{Name: "customer", Value: fmt.Sprintf("c%d", r.IntN(100_000))}},
		Priority: 5, Attempts: 1, Dispatches: 1, Node: fmt.Sprintf("n%d", r.IntN(5)), Worker: fmt.Sprintf("overhop/%08x", r.IntN(200)),
		Created: epoch.Add(time.Duration(n)*200*time.Microsecond + time.Duration(r.IntN(200_000))),
	}
	for i := range d.ID {
		d.ID[i] = byte(r.UintN(256))
	}
	d.Started = d.Created.Add(time.Duration(r.ExpFloat64() * 2e7))
	d.Ended = d.Started.Add(time.Duration(r.ExpFloat64() * 2e8))
	if r.IntN(100) == 0 {
		d.Created = d.Created.Add(-time.Duration(r.Int64N(int64(72 * time.Hour))))
	}
	switch k := r.IntN(100); {
	case k < 4:
		d.State, d.Attempts, d.Dispatches = job.Failed, 3, 3
		d.Fault = &job.Fault{Type: fmt.Sprintf("Error%d", r.IntN(50)), Message: fmt.Sprintf("mailbox %d of the server is full: try again in %d minutes", r.IntN(10_000), r.IntN(60))}
	case k == 4:
		d.State = []job.State{job.Cancelled, job.Expired}[r.IntN(2)]
	}
	return d
}

// BenchmarkWrite measures what it costs to make a segment of a document.
func BenchmarkWrite(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	docs := make([]*job.Document, MaxDocuments)
	for i := range docs {
		docs[i] = benchDocument(r, i)
	}
	var to bytes.Buffer
	for b.Loop() {
		to.Reset()
		Sort(docs)
		if err := Write(&to, docs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/MaxDocuments/1000, "µs/document")
	b.ReportMetric(float64(to.Len())/MaxDocuments, "bytes/document")
}

// benchSources writes segments of documents to files and opens them.
func benchSources(b *testing.B, n int) []Source {
	r := rand.New(rand.NewPCG(1, 2))
	dir := b.TempDir()
	var sources []Source
	for start := 0; start < n; start += MaxDocuments {
		docs := make([]*job.Document, min(MaxDocuments, n-start))
		for i := range docs {
			docs[i] = benchDocument(r, start+i)
		}
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(start)))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { f.Close() })
		Sort(docs)
		var data bytes.Buffer
		if err := Write(&data, docs); err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(data.Bytes()); err != nil {
			b.Fatal(err)
		}
		s, err := Open(f, int64(data.Len()))
		if err != nil {
			b.Fatal(err)
		}
		sources = append(sources, s)
	}
	return sources
}

// processorTime returns what this process has used.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkPage measures how long pages of 50 documents take, by kind of query: the time that
// passes, and the processor time, which other load on the machine changes less.
func BenchmarkPage(b *testing.B) {
	n := *benchDocuments
	sources := benchSources(b, n)
	r := rand.New(rand.NewPCG(3, 4))
	end := epoch.Add(time.Duration(n) * 200 * time.Microsecond)
	for _, kind := range []struct {
		name string
		text func() string
	}{
		{"all", func() string { return "" }},
		{"queue,state", func() string { return fmt.Sprintf("queue:queue-%d state:failed", r.IntN(50)) }},
		{"key", func() string { return fmt.Sprintf("key:cust-%d", r.IntN(100_000)) }},
		{"key,sort:-ended", func() string { return fmt.Sprintf("key:cust-%d sort:-ended", r.IntN(100_000)) }},
		{"id", func() string { return "id:" + job.ID{byte(r.UintN(256)), byte(r.UintN(256))}.String() }},
		{"id-prefix", func() string { return fmt.Sprintf("id:%06x*", r.IntN(1<<24)) }},
		{"word", func() string { return fmt.Sprintf("cust-%d", r.IntN(100_000)) }},
		{"queue,state,error,since,customer", func() string {
			return fmt.Sprintf("queue:queue-%d state:failed error:error%d since:1h customer:c%d", r.IntN(50), r.IntN(50), r.IntN(100_000))
		}},
		{"worker,tag,node,expired", func() string {
			return fmt.Sprintf("worker:overhop/%08x tag:tag-%d node:n%d state:expired", r.IntN(200), r.IntN(100), r.IntN(5))
		}},
		{"key-prefix,state", func() string { return fmt.Sprintf("key:cust-%d* state:failed", r.IntN(10)) }},
		{"two-prefixes,expired", func() string {
			return fmt.Sprintf("key:cust-%d* customer:c%d* state:expired tag:tag-%d", r.IntN(100), r.IntN(100), r.IntN(100))
		}},
		{"two-prefixes", func() string { return fmt.Sprintf("key:cust-%d* customer:c%d*", r.IntN(1000), r.IntN(1000)) }},
		{"function,took", func() string { return fmt.Sprintf("function:function-%d took:>1s", r.IntN(200)) }},
		{"took,none", func() string { return fmt.Sprintf("took:>%dm", 1+r.IntN(10)) }},
		{"took,state", func() string { return fmt.Sprintf("took:>1500ms state:cancelled tag:tag-%d", r.IntN(100)) }},
		{"text", func() string { return fmt.Sprintf("text:\"mailbox %d\"", r.IntN(10_000)) }},
		{"no-key", func() string { return "-limit_key:*" }},
		{"contradiction", func() string { return "key:cust-* -limit_key:cust-*" }},
		{"excluded", func() string { return fmt.Sprintf("-state:completed,failed -tag:tag-%d -node:n1", r.IntN(100)) }},
		{"or", func() string {
			return fmt.Sprintf("(error:error%d or tag:tag-%d) (key:cust-%d or customer:c%d)", r.IntN(50), r.IntN(100), r.IntN(100_000), r.IntN(100_000))
		}},
		{"oldest", func() string { return fmt.Sprintf("queue:queue-%d state:failed sort:created", r.IntN(50)) }},
		{"oldest-ended", func() string { return fmt.Sprintf("queue:queue-%d state:failed sort:ended", r.IntN(50)) }},
		{"ended-range", func() string {
			at := epoch.Add(time.Duration(r.Int64N(int64(end.Sub(epoch)))))
			return fmt.Sprintf("ended:%s..%s state:failed sort:ended", at.Format(time.RFC3339), at.Add(time.Minute).Format(time.RFC3339))
		}},
	} {
		b.Run(kind.name, func(b *testing.B) {
			var times, used []time.Duration
			found := 0
			for b.Loop() {
				q, err := query.Parse(kind.text(), query.Options{Now: end})
				if err != nil {
					b.Fatal(err)
				}
				start, before := time.Now(), processorTime(b)
				var after *Cursor
				if r.IntN(2) == 0 && kind.name == "all" {
					after = &Cursor{Value: epoch.UnixNano() + r.Int64N(end.UnixNano()-epoch.UnixNano())}
				}
				page, err := Search(context.Background(), q, after, 50, sources...)
				if err != nil {
					b.Fatal(err)
				}
				times, used = append(times, time.Since(start)), append(used, processorTime(b)-before)
				found += len(page.Documents)
			}
			for suffix, d := range map[string][]time.Duration{"ms": times, "cpu-ms": used} {
				slices.Sort(d)
				b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, "p50-"+suffix)
				b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1000, "p99-"+suffix)
			}
			b.ReportMetric(float64(found)/float64(len(times)), "documents")
			b.ReportMetric(0, "ns/op")
		})
	}
}
