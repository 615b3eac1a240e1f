package consensus

import (
	"net"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/peers"
)

// newTransport returns Raft's transport over the peer listener. A single node
// without a listener gets a transport that connects to nothing.
func newTransport(id *Identity, marks *watermarks, log *raftLog) raft.Transport {
	if id.Listener() == nil {
		_, t := raft.NewInmemTransport(raft.ServerAddress(id.ServerID()))
		return t
	}
	return &trackingTransport{marks, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		ServerAddressProvider: addressProvider{},
		Stream:                streamLayer{id.Listener()},
		Logger:                log,
		MaxPool:               3,
		// 1 disables pipelining, which has blocked replication behind a slow
		// disk; with batched entries it has no advantage.
		MaxRPCsInFlight:         1,
		Timeout:                 rpcTimeout,
		MsgpackUseNewTimeFormat: true,
	})}
}

// trackingTransport is Raft's transport. While this node leads, it records how far the
// logs of the followers reach.
type trackingTransport struct {
	watermarks *watermarks
	*raft.NetworkTransport
}

// AppendEntries sends entries to a member. If it succeeds, the member has them
// on its disk, and must keep forever those that are committed by now.
//
// The member is told at most of the commit of the entries up to the last one sent. It
// applies all entries up to the commit index that it is told, and may have others after
// these that were never committed: Raft's library replaces them only when it receives
// their successors, and after a pause it sends a message without entries that has the
// commit index of the moment.
func (o *trackingTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	sent := *args
	sent.LeaderCommitIndex = min(args.LeaderCommitIndex, args.PrevLogEntry+uint64(len(args.Entries)))
	err := o.NetworkTransport.AppendEntries(id, target, &sent, resp)
	if err == nil && resp.Success {
		o.watermarks.recordPeer(string(id), sent.LeaderCommitIndex)
	}
	return err
}

// server returns the member with this server id as an entry of Raft's
// configuration.
func server(id string) raft.Server {
	return raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)}
}

// streamLayer adapts the peer listener to Raft's transport.
type streamLayer struct{ *peers.PeerListener }

func (s streamLayer) Dial(id raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.PeerListener.Dial(string(id), timeout)
}

// addressProvider uses a member's server id as its address. The peer listener
// maps server ids to network addresses, and checks which member answers there.
type addressProvider struct{}

func (addressProvider) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	return raft.ServerAddress(id), nil
}

// addrOf returns the raft address of a member, given by its name or its server
// id, or "" if it is not known.
func addrOf(id *Identity, member string) string {
	for _, p := range id.Peers() {
		if p.Node != member && p.ServerID() != member {
			continue
		}
		if listener := id.Listener(); listener != nil {
			return listener.Address(p.ServerID())
		}
		return p.Raft
	}
	return ""
}

// closeTransport closes the transport and its pooled connections.
func closeTransport(t raft.Transport) error {
	if net, ok := t.(*trackingTransport); ok {
		net.CloseStreams()
		return net.Close()
	}
	return nil
}
