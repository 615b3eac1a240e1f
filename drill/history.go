package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill/check"
)

// history is what a yard's events say, in short; times are by the host's clock.
type history struct {
	gaps      int            // events whose number is not the next
	twice     int            // dispatches with two ends, jobs delivered twice
	delivered map[string]int // jobs, how often
	ends      []check.End
	leases    []check.Lease
}

// readHistory reads all that has been told so far.
func readHistory(ctx context.Context, n *Node) (h history, err error) {
	c, err := cluster.Dial(ctx, n.NATS, cluster.DialOptions{Name: "drill"})
	if err != nil {
		return h, err
	}
	defer c.Close()
	now, err := hostClock()
	if err != nil {
		return h, err
	}
	offset := time.Now().UnixNano() - now // all processes are on this host
	h.delivered = make(map[string]int)
	ended := make(map[string]int) // dispatches
	next := uint64(1)
	err = c.History(ctx, time.Time{}, false, func(t cluster.Tale) error {
		for _, text := range bytes.Split(bytes.TrimSpace(t.Body), []byte("\n")) {
			var e struct {
				Event, Owner, Reason string
				Request              string `json:"request_id"`
				Lease                string `json:"lease_id"`
				Seq                  uint64
				At                   time.Time
			}
			if err := json.Unmarshal(text, &e); err != nil {
				return fmt.Errorf("history says %q: %w", text, err)
			}
			if e.Seq != next {
				h.gaps++
			}
			next = e.Seq + 1
			at := e.At.UnixNano() - offset
			switch e.Event {
			case "AuthorityAcquired", "AuthorityRenewed":
				h.leases = append(h.leases, check.Lease{Acquired: e.Event == "AuthorityAcquired", Owner: e.Owner, ID: e.Lease, At: at})
			case "DispatchDelivered", "DispatchFailed":
				id, _, _ := strings.Cut(e.Request, "#")
				h.ends = append(h.ends, check.End{Job: id, Failed: e.Event == "DispatchFailed", Reason: e.Reason, At: at})
				if ended[e.Request]++; ended[e.Request] > 1 {
					h.twice++
				}
				if e.Event == "DispatchDelivered" {
					if h.delivered[id]++; h.delivered[id] > 1 {
						h.twice++
					}
				}
			}
		}
		return nil
	})
	return h, err
}

// acquired counts the acquisitions of the authority between two moments.
func (h *history) acquired(from, til int64) (n int) {
	for _, l := range h.leases {
		if l.Acquired && l.At > from && l.At < til {
			n++
		}
	}
	return n
}

// gapsOfEnds are the longest time between two ends until lastAck, and the
// longest from a kill to the next end.
func (y *Yard) gapsOfEnds(ends []check.End, lastAck int64) (gap, recovery time.Duration) {
	last := int64(0)
	for _, e := range ends {
		if last > 0 && e.At < lastAck {
			gap = max(gap, time.Duration(e.At-last))
		}
		for _, kill := range y.kills {
			if last <= kill && e.At > kill {
				recovery = max(recovery, time.Duration(e.At-kill))
			}
		}
		last = e.At
	}
	return gap, recovery
}
