package server

import (
	"cmp"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of a page of queues, or of what belongs to queues.
const (
	maxQueuePage = 1000
	maxPageBytes = 600 << 10 // of the JSON of the items of any page, so that it fits a NATS message
)

// queuePageLimit returns the limit of a request for a page of queues; limit 0 means the
// largest.
func queuePageLimit(limit int) (int, error) {
	if limit < 0 || limit > maxQueuePage {
		return 0, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", limit, maxQueuePage)}
	}
	return cmp.Or(limit, maxQueuePage), nil
}

// fitting returns how many of the first items fit in a page: at least one, if there is
// one.
func fitting[T any](items []T) (int, error) {
	size := 0
	for i := range items {
		text, err := marshal(&items[i])
		if err != nil {
			return 0, err
		}
		if size += len(text); size > maxPageBytes && i > 0 {
			return i, nil
		}
	}
	return len(items), nil
}
