package client

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// QueueSettings are settings of a queue to change. Those that are nil stay as they are.
type QueueSettings struct {
	// Limit is how many of the queue's jobs run at the same time in the whole cluster;
	// 0 removes the limit. A lowered limit stops no running job.
	Limit *int
	// RetryOnTimeout is whether an attempt that exceeds its timeout is retried like one
	// that fails, unless the job decides.
	RetryOnTimeout *bool
}

// SetQueue changes settings of a queue. The error is a [*Error] if the queue does not
// exist.
func (c *Client) SetQueue(ctx context.Context, name string, settings QueueSettings) error {
	request := overhop.SetQueue{Queue: name, RetryOnTimeout: settings.RetryOnTimeout}
	if limit := settings.Limit; limit != nil {
		if *limit < 0 || *limit > math.MaxUint32 {
			return fmt.Errorf("set queue %s: Limit is %d; it is 1 to %d, or 0 for no limit", name, *limit, math.MaxUint32)
		}
		request.Limit = new(uint32(*limit))
	}
	connection, err := c.producer.Client(ctx)
	if err == nil {
		err = connection.SetQueue(ctx, request)
	}
	return wrap("set queue "+name, err)
}

// JobSettings are settings of a job that has not started. Those that are nil, zero or
// false stay as they are. Now, RunAt and Delay exclude each other.
type JobSettings struct {
	// Priority is 0 to 9; 9 starts first.
	Priority *int
	// Now lets the job start as soon as possible. It also skips the delay before the next
	// attempt of a job that is retried.
	Now bool
	// RunAt is the earliest start; a time that has passed means now.
	RunAt time.Time
	// Delay is the time from now until the earliest start.
	Delay time.Duration
}

// SetJob changes when a waiting or delayed job starts, or its priority, and returns its
// state, "waiting" or "delayed". Repeating it is safe. The error wraps [ErrInvalidJob] if a
// setting is invalid. It is a [*Error] with the code JOB_NOT_PENDING if the job runs or has
// ended.
func (c *Client) SetJob(ctx context.Context, id string, settings JobSettings) (state string, err error) {
	request, err := settings.request(id)
	if err != nil {
		return "", err
	}
	connection, err := c.producer.Client(ctx)
	if err == nil {
		state, err = connection.SetJob(ctx, request)
	}
	return state, wrap("set job "+id, err)
}

// request returns the settings as a request of the protocol. The error wraps
// [ErrInvalidJob].
func (s *JobSettings) request(id string) (overhop.SetJob, error) {
	request := overhop.SetJob{JID: id}
	given := 0
	if s.Priority != nil {
		if *s.Priority < 0 || *s.Priority > 9 {
			return request, fmt.Errorf("%w: Priority is %d; it is 0 to 9", ErrInvalidJob, *s.Priority)
		}
		request.Priority = new(int64(*s.Priority))
	}
	if s.Now {
		request.Delay = new(time.Duration(0))
		given++
	}
	if !s.RunAt.IsZero() {
		request.At = &s.RunAt
		given++
	}
	if s.Delay != 0 {
		request.Delay = &s.Delay
		given++
	}
	switch {
	case s.Delay < 0:
		return request, fmt.Errorf("%w: Delay is %s; it is not negative", ErrInvalidJob, s.Delay)
	case given > 1:
		return request, fmt.Errorf("%w: give one of Now, RunAt and Delay", ErrInvalidJob)
	case given == 0 && s.Priority == nil:
		return request, fmt.Errorf("%w: no setting is given", ErrInvalidJob)
	}
	return request, nil
}
