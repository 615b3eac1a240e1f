package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// How long a job waits whose function no worker of its queue knows yet.
const (
	unknownDelay    = 5 * time.Second  // until it is tried again, at first; later half of the job's age
	unknownMaxDelay = 10 * time.Minute // at most
	unknownGrace    = 24 * time.Hour   // since the job was accepted; then the attempts fail
)

// unknownFunction returns the handler of the jobs of a queue that name no function of
// functions: the default of [Worker.UnknownFunction].
func unknownFunction(queue string, functions map[string]HandlerFunc) HandlerFunc {
	names := quotedNames(functions)
	return func(_ context.Context, job *JobInfo) (any, error) {
		err := fmt.Errorf("this worker has no handler for function %q of queue %q; it has %s", job.Function, queue, names)
		age := job.quest.Sent().Sub(job.Accepted) // by the node's clock alone
		if age < unknownGrace {
			err = fmt.Errorf("%w: %w", err, Snooze(min(max(age/2, unknownDelay), unknownMaxDelay)))
		}
		return nil, Coded(err, "UNKNOWN_FUNCTION", nil)
	}
}

// quotedNames returns the names of functions, sorted, for a message.
func quotedNames(functions map[string]HandlerFunc) string {
	names := slices.Sorted(maps.Keys(functions))
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(names, ", ")
}
