package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/test/drill/check"
)

// history is a summary of a cluster's events; times are by the host's clock.
type history struct {
	eventGaps  int            // events whose number is not the next
	duplicates int            // dispatches with two ends, and jobs delivered twice
	delivered  map[string]int // number of deliveries of each job
	ends       []check.End
	leases     []check.Lease
}

// readHistory reads the whole history through one node.
func readHistory(ctx context.Context, n *Node) (h history, err error) {
	c, err := cluster.Dial(ctx, n.URL(), cluster.DialOptions{Name: "drill"})
	if err != nil {
		return h, err
	}
	defer c.Close()
	now, err := readHostClock()
	if err != nil {
		return h, err
	}
	offset := time.Now().UnixNano() - now // all processes are on this host
	h.delivered = make(map[string]int)
	ended := make(map[string]int) // number of ends of each dispatch
	next := uint64(1)
	err = c.History(ctx, time.Time{}, false, func(b streams.Batch) error {
		for _, text := range bytes.Split(bytes.TrimSpace(b.Body), []byte("\n")) {
			var e struct {
				Event, Owner, Reason string
				Request              string `json:"request_id"`
				Lease                string `json:"lease_id"`
				Seq                  uint64
				At                   time.Time
			}
			if err := json.Unmarshal(text, &e); err != nil {
				return fmt.Errorf("malformed line of history %q: %w", text, err)
			}
			if e.Seq != next {
				h.eventGaps++
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
					h.duplicates++
				}
				if e.Event == "DispatchDelivered" {
					if h.delivered[id]++; h.delivered[id] > 1 {
						h.duplicates++
					}
				}
			}
		}
		return nil
	})
	return h, err
}

// acquired returns the number of acquisitions of the authority between two moments.
func (h *history) acquired(from, to int64) (n int) {
	for _, l := range h.leases {
		if l.Acquired && l.At > from && l.At < to {
			n++
		}
	}
	return n
}

// outcomeGaps returns the longest time between two ends before lastAck, and the
// longest time from the kill of a node to the next end.
func (c *Cluster) outcomeGaps(ends []check.End, lastAck int64) (gap, recovery time.Duration) {
	last := int64(0)
	for _, e := range ends {
		if last > 0 && e.At < lastAck {
			gap = max(gap, time.Duration(e.At-last))
		}
		for _, kill := range c.kills {
			if last <= kill && e.At > kill {
				recovery = max(recovery, time.Duration(e.At-kill))
			}
		}
		last = e.At
	}
	return gap, recovery
}
