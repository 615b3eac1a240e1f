package intake

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// NewQueues bounds how many queues each user makes within a minute at this node, so that no user
// takes all that the ledger has space for. A queue counts when it is first named while it does not
// exist, whatever becomes of the request. A nil *NewQueues bounds nothing.
type NewQueues struct {
	View func(func(*ledger.Ledger)) // reads the local ledger
	Max  int                        // new queues of one user within a minute

	mu     crash.Mutex
	byUser map[string]map[string]time.Time // when each new queue was first named, by user and queue
}

// newQueuesWindow is the time for which a new queue counts.
const newQueuesWindow = time.Minute

// Check returns an [*api.Error] if a queue does not exist and would be one more than a user may
// make now. quota returns the user's name, or "" for a user without a bound; nil stands for such
// a user. Check calls it only if the queue does not exist.
func (n *NewQueues) Check(quota func() string, queue string) error {
	if n == nil || quota == nil {
		return nil
	}
	exists := false
	n.View(func(l *ledger.Ledger) { _, exists = l.Queue(queue) })
	if exists {
		return nil
	}
	user := quota()
	if user == "" {
		return nil
	}
	wait := n.count(user, queue, time.Now())
	if wait <= 0 {
		return nil
	}
	return &api.Error{
		Code: api.CodeLimited, RetryAfter: wait, Data: []byte(`{"reason":"` + api.ReasonNewQueues + `"}`),
		Text: fmt.Sprintf("there is no queue %q, and %s has named %d new queues within a minute, as many as scheduler.new_queues_per_minute allows: use a queue that exists, try again in %s, or let an admin add it",
			queue, user, n.Max, duration.Format(wait.Truncate(time.Second)+time.Second)),
	}
}

// count counts a new queue of a user. If that is one too many, count returns the time until the
// user may make another one, otherwise 0.
func (n *NewQueues) count(user, queue string, now time.Time) (wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	named := n.byUser[user]
	oldest := now
	for name, at := range named {
		if now.Sub(at) >= newQueuesWindow {
			delete(named, name)
		} else if at.Before(oldest) {
			oldest = at
		}
	}
	_, counted := named[queue]
	switch {
	case counted:
		return 0
	case len(named) >= n.Max:
		return oldest.Add(newQueuesWindow).Sub(now)
	case named == nil:
		named = map[string]time.Time{}
		if n.byUser == nil {
			n.byUser = map[string]map[string]time.Time{}
		}
		n.byUser[user] = named
	}
	named[queue] = now
	return 0
}
