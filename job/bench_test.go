package job

import (
	"testing"
	"time"
)

// BenchmarkRecord_Job measures how the authority reads a record.
func BenchmarkRecord_Job(b *testing.B) {
	r := Record{
		Queue: "mail", Key: "0198a1f2-6c1d-7a3b-8e4f-0123456789ab", Stored: time.Now(),
		Body: []byte(`{"function":"echo","params":{"to":"ann","n":12345,"pad":"` + string(testBody256()) + `"},"priority":7,"max_attempts":3}`),
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Job("L0", Defaults{}); err != nil {
			b.Fatal(err)
		}
	}
}
