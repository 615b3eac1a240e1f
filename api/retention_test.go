package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// The settings that the error for an unknown key lists are accepted.
func TestRetentionChange_ListedSettings(t *testing.T) {
	for _, c := range []struct {
		ofQueue bool
		change  interface {
			Settings() ([]job.RetentionSetting, error)
		}
		accepted []job.RetentionKey
	}{{false, new(RetentionChange), job.RetentionKeys}, {true, new(QueueRetentionChange), job.QueueRetentionKeys}} {
		_, list, _ := strings.Cut(job.UnmarshalStrict("the request", []byte(`{"age":1}`), c.change).Error(), "there are ")
		listed := strings.Split(list, ", ")
		if len(listed) != len(c.accepted) {
			t.Errorf("of a queue: %t: listed %q, accepted are %v", c.ofQueue, listed, c.accepted)
		}
		for _, name := range listed {
			kept, bound, _ := strings.Cut(name, ".")
			value := 100_000
			if bound == "bytes" {
				value = 2 * job.MinRetentionBytes
			}
			request, err := json.Marshal(map[string]any{kept: map[string]int{bound: value}})
			if err != nil {
				t.Fatal(err)
			}
			err = job.UnmarshalStrict("the request", request, c.change)
			settings, invalid := c.change.Settings()
			if err != nil || invalid != nil || len(settings) == 0 {
				t.Errorf("%s: %v, %v, %v", request, settings, err, invalid)
			}
			if err := job.ValidateRetention(settings, c.ofQueue); err != nil {
				t.Errorf("%s: %v", request, err)
			}
		}
	}
}
