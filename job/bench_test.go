package job

import (
	"encoding/json"
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

// BenchmarkSpec_Encode measures how a job is written as a record.
func BenchmarkSpec_Encode(b *testing.B) {
	s := Spec{
		Function: "echo", Params: []byte(`{"to":"ann","n":12345,"pad":"` + string(testBody256()) + `"}`),
		Priority: new(int64(7)), MaxAttempts: new(int64(3)),
	}
	for name, encode := range map[string]func() ([]byte, error){
		"spec":          s.Encode,
		"encoding/json": func() ([]byte, error) { return json.Marshal(s) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
