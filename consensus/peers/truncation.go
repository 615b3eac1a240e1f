package peers

import (
	"errors"
	"fmt"
)

// LogInfo gives a PeerListener access to this node's log and to what it knows
// of others' logs.
type LogInfo struct {
	// LastIndex returns the last index of the log.
	LastIndex func() uint64
	// Fresh: the node had promised nothing when it started, so its log may
	// start again from empty.
	Fresh bool
	// MinIndex returns the index that the log of the member with this
	// [MemberID.ServerID] has reached at least, or 0 if it is not known.
	MinIndex func(id string) uint64
	// OnTruncated is called when another member has seen more of this node's
	// log than there is.
	OnTruncated func(error)
}

// SetLogInfo makes the listener refuse members whose logs have lost their ends,
// and announce the last index of this node's log.
//
// A member's log loses its end when an older copy of its data directory is put
// back. The member would then vote, and count, without what it has
// acknowledged. Its own files are consistent, so only other members can detect
// this. They compare the indexes when they first meet a process of that member:
// what it acknowledges afterwards may be later than the index in its hello.
func (s *peerState) SetLogInfo(log LogInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logInfo, s.self.Fresh = log, log.Fresh
}

// CheckTruncated asks the other members whether they have seen more of this
// node's log than there is. It takes at most a second, and ignores members that
// do not answer.
func (l *PeerListener) CheckTruncated() error {
	addrs := l.otherAddrs()
	var errs []error
	for i, answer := range l.exchangeAll(addrs, purposeRaft) {
		if answer.Truncated {
			errs = append(errs, &RefusedError{Peer: l.nameAt(addrs[i]), Reason: answer.Refused})
		}
	}
	return errors.Join(errs...)
}

// truncationReason returns why this node refuses the sender of a hello: the sender's
// log ends before an entry that this node has seen in it. It returns "" if that is not
// so or cannot be known. Each process of a member is checked only once, because a
// running process cannot lose the end of its log.
func (s *peerState) truncationReason(theirs *hello) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := theirs.memberID()
	isKnown := s.logInfo.MinIndex != nil && theirs.LastIndex != nil && theirs.Instance != ""
	if !isKnown || s.verified[id.ServerID()] == theirs.Instance {
		return ""
	}
	if minIndex := s.logInfo.MinIndex(id.ServerID()); !theirs.Fresh && *theirs.LastIndex < minIndex {
		return fmt.Sprintf("has seen the log of %s reach entry %d, but it now ends at %d: an older copy of its data directory was put back",
			id.Node, minIndex, *theirs.LastIndex)
	}
	s.verified[id.ServerID()] = theirs.Instance
	return ""
}

// reportTruncated calls LogInfo.OnTruncated, if it is set.
func (s *peerState) reportTruncated(err error) {
	s.mu.Lock()
	report := s.logInfo.OnTruncated
	s.mu.Unlock()
	if report != nil {
		report(err)
	}
}
