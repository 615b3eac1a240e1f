// Package retentionflag parses and formats retention settings for the command line.
package retentionflag

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Parse returns the request that changes retention settings, which are given as
// "finished.age=2d", "failed.count=1000" or "events.bytes=1GiB"; the value "default"
// resets a setting. It checks them for a queue, or for the yard.
func Parse(settings []string, ofQueue bool) (*api.RetentionChange, error) {
	request := &api.RetentionChange{}
	for _, text := range settings {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("%q is no setting; give it as name=value, such as finished.age=2d", text)
		}
		key, err := job.ParseRetentionKey(name, ofQueue)
		if err != nil {
			return nil, err
		}
		setting := request.Setting(key)
		if setting == nil {
			return nil, job.RetentionSetting{Key: key}.Validate(ofQueue) // has the reason
		}
		*setting = api.Reset[int64]()
		if value != "default" {
			n, err := retentionValue(key, value)
			if err != nil {
				return nil, err
			}
			if n <= 0 {
				return nil, fmt.Errorf("%s is %s: must be positive, or default", key, value)
			}
			*setting = api.SetTo(n)
		}
	}
	changes, err := request.Settings()
	if err != nil {
		return nil, err
	}
	return request, job.ValidateRetention(changes, ofQueue)
}

// retentionValue parses the value of a setting: an age in milliseconds, a count, or bytes.
func retentionValue(key job.RetentionKey, text string) (int64, error) {
	switch key.Bound {
	case job.BoundAge:
		d, err := duration.Parse(text)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", key, err)
		}
		return d.Milliseconds(), nil
	case job.BoundBytes:
		n, ok := job.ParseSize(text)
		if !ok {
			return 0, fmt.Errorf("%s is %q: must be a number of bytes, such as 1073741824 or 1GiB, or default", key, text)
		}
		return n, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %q: must be a number, or default", key, text)
	}
	return n, nil
}

// Text returns the value of a setting as people read it: an age with days.
func Text(value int64, unit string) string {
	switch {
	case value == 0 && unit == "bytes":
		return "the stream's"
	case value == 0:
		return "-"
	case unit == "ms":
		return duration.Format(time.Duration(value) * time.Millisecond)
	case unit == "bytes":
		return job.FormatSize(value)
	}
	return fmt.Sprint(value)
}
