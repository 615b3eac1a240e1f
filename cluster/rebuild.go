package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// CopyGroup names the group of JetStream's that agrees on what is in a stream of
// which this node has a copy; "" if it has none, or if that is not one of those
// whose copies are proved. Of a group that is damaged, it may be any stream's.
func (c *Cluster) CopyGroup(stream string) (string, error) {
	open, err := c.groupsHere()
	if err != nil {
		return "", err
	}
	if group := open[stream]; group != "" {
		if Proved(stream) {
			return group, nil
		}
		return "", nil
	}
	for _, a := range c.aside {
		if a.stream == stream && c.srv.JetStreamIsStreamAssigned(account, stream) {
			return a.group, nil
		}
	}
	return "", nil
}

// Spares tells why a stream cannot do without a member's copy: "" if every other
// copy has all that its leader has. That may still be this member.
func (c *Cluster) Spares(ctx context.Context, stream, member string) (why string, leads bool, err error) {
	info, err := c.streamInfo(ctx, stream)
	switch {
	case err != nil:
		return "", false, err
	case info.Cluster == nil || info.Cluster.Leader == "":
		return "it has no leader", false, nil
	}
	leads = NodeOf(info.Cluster.Leader) == member
	others := 0
	if !leads {
		others++
	}
	for _, r := range info.Cluster.Replicas {
		if NodeOf(r.Name) == member {
			continue
		}
		if !r.Current || r.Offline || r.Lag > 0 || r.Active > quorumQuiet {
			return fmt.Sprintf("the copy on %s is %d operations behind, or not heard", NodeOf(r.Name), r.Lag), leads, nil
		}
		others++
	}
	if others < 2 {
		return fmt.Sprintf("%d other members have a copy, and two must", others), leads, nil
	}
	return "", leads, nil
}

// ErrNoCopy: a stream does not lie on this node.
var ErrNoCopy = errors.New("this node has no copy of the stream")

// Follows tells why this node's copy of a stream is not as far as the leader; "" if
// it is. [ErrNoCopy] says that there is to be none.
func (c *Cluster) Follows(ctx context.Context, stream string) (why string, err error) {
	info, err := c.streamInfo(ctx, stream)
	if err != nil {
		return "", err
	}
	if info.Cluster == nil || NodeOf(info.Cluster.Leader) == c.cfg.Node {
		return "", nil
	}
	all := copiesOf(info.Cluster)
	own := slices.IndexFunc(all, func(o Copy) bool { return o.Is(c.cfg.Identity) })
	if own < 0 {
		return "", ErrNoCopy
	}
	if o := &all[own]; !o.Current || o.Lag > 0 {
		return fmt.Sprintf("%d operations behind", o.Lag), nil
	}
	if !c.srv.JetStreamIsStreamCurrent(account, stream) {
		return "being filled", nil
	}
	return "", nil
}

// CloseStreams stops JetStream on this node for as long as its server lives: then
// what it has of a stream is nobody's any more, and the others agree without it.
func (c *Cluster) CloseStreams() error { return c.srv.ShutdownJetStream() }

// RemoveCopy removes this node's copy of a stream, behind [Cluster.CloseStreams]:
// its messages, and its group's log and snapshots. The next start fills it anew
// from the leader. What stays is how the group voted, and with whom: who has
// forgotten that might elect two leaders. The messages go last: a copy without them
// whose group still had its log might be elected, and give nothing to the others.
func (c *Cluster) RemoveCopy(stream, group string) error {
	if c.srv.JetStreamEnabled() {
		return errors.New("JetStream still runs on this node")
	}
	groups := groupsDir(c.storeDir())
	log, aside := filepath.Join(groups, group), slices.Contains(c.aside, asideGroup{stream, group})
	if aside {
		log += asideSuffix
	}
	for _, dir := range []string{filepath.Join(log, "msgs"), filepath.Join(log, "snapshots"), filepath.Join(c.streamDir(stream), "msgs")} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove this node's copy of %s: %w", stream, err)
		}
	}
	if !aside {
		return nil
	}
	if err := takeBack(groups, group); err != nil {
		return fmt.Errorf("put the group of %s back: %w", stream, err)
	}
	return nil
}

// systemAccount is the server's own.
const systemAccount = "$SYS"
