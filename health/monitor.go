package health

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Config configures a monitor. Its functions are called from one goroutine, except
// PeerStatus, which is called concurrently. They must not block for long.
type Config struct {
	Node    string
	Members func() []string // all members, including this node
	Disk    Disk

	// Check returns the node's status without its disk.
	Check func() NodeStatus
	// PeerStatus requests another member's status. PublishStatus sets the status that
	// this node returns to such requests.
	PeerStatus    func(member string) (NodeStatus, error)
	PublishStatus func(NodeStatus)
	// HoldsAuthority reports whether this node holds the authority;
	// TransferAuthority transfers it to another member.
	HoldsAuthority    func() bool
	TransferAuthority func(ctx context.Context, to string) error
	// SetClosed is called with the reason why this node accepts no jobs, "" if it does,
	// and whether other members accept them. It is called only when that changes.
	SetClosed func(reason string, othersAccept bool)
}

// Timing of a monitor.
const (
	CheckInterval = time.Second     // between two checks
	StaleAfter    = 4 * time.Second // age at which a member's status is ignored
	freshFor      = 2 * time.Second // less than a member takes to stop and start again
)

// Monitor monitors one node.
type Monitor struct {
	cfg      Config
	log      *slog.Logger
	transfer transferPolicy

	mu           crash.Mutex
	freeSpace    FreeSpace
	scarce       bool // see FreeSpace.scarce
	status       NodeStatus
	received     map[string]receivedStatus
	closedReason string // why the intake is closed; "": it is open

	othersAccept bool // while the intake is closed: other members accept jobs
}

// receivedStatus is another member's status and when it was received.
type receivedStatus struct {
	NodeStatus
	receivedAt time.Time
}

// New returns a monitor; [Monitor.Run] runs it.
func New(cfg Config, log *slog.Logger) *Monitor {
	return &Monitor{cfg: cfg, log: log, othersAccept: true, received: map[string]receivedStatus{}, status: NodeStatus{Node: cfg.Node, Contact: -1}}
}

// Run monitors the node until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(CheckInterval)
	defer tick.Stop()
	for {
		m.tick(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// tick runs all checks once, opens or closes the intake, and transfers the authority if
// this node holds it and should not.
func (m *Monitor) tick(ctx context.Context) {
	m.check()
	m.pollMembers()
	m.updateIntake()
	now := time.Now()
	others := m.PeerStatuses()
	m.mu.Lock()
	status := m.status
	m.mu.Unlock()
	to := m.transfer.successor(now, m.cfg.HoldsAuthority(), &status, others)
	if to == "" {
		return
	}
	m.log.Warn("node unfit for the authority, transferring it", "to", to, "reason", joinTexts(status.Conditions))
	transfer, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := m.cfg.TransferAuthority(transfer, to); err != nil && m.cfg.HoldsAuthority() {
		m.log.Warn("authority transfer failed", "to", to, "err", err)
	}
}

// check determines this node's status, including its disk, and publishes it.
func (m *Monitor) check() {
	status := m.cfg.Check()
	status.Node = m.cfg.Node
	space, err := m.cfg.Disk.Measure()
	m.mu.Lock()
	if err != nil {
		status.DiskLevel = LevelCritical
		status.Conditions = append(status.Conditions, Condition{DiskFailed, fmt.Sprintf("%v: replace the disk", err)})
	} else {
		status.DiskLevel = space.diskLevel(m.status.DiskLevel)
		status.Conditions = append(status.Conditions, m.cfg.Disk.conditions(status.DiskLevel, space)...)
		m.freeSpace = space
	}
	m.scarce = err != nil || space.scarce(m.scarce)
	previousLevel := m.status.DiskLevel
	m.status = status
	m.mu.Unlock()
	if previousLevel != status.DiskLevel {
		m.log.Warn("disk space level changed", "level", status.DiskLevel.String(), "free_bytes", space.Free, "refuse_below", space.Refuse, "stop_below", space.Stop)
	}
	m.cfg.PublishStatus(status)
}

// conditions returns the condition of a disk at a level, nil for LevelOK. Its text
// contains the threshold and not the free space, because a text that changes each
// second would flood the history. The free space is in the metrics.
func (d Disk) conditions(level DiskLevel, space FreeSpace) []Condition {
	switch level {
	case LevelLow:
		return []Condition{{DiskLow, fmt.Sprintf("less than %s is free where the data lies: this node takes no jobs in until there is more; free space, or run 'yardmaster node release-ballast --data-dir %s' there", formatBytes(space.Refuse), d.Dir)}}
	case LevelCritical:
		return []Condition{{DiskCritical, fmt.Sprintf("less than %s is free where the data lies: this node takes no jobs in and decides nothing new; free space, or run 'yardmaster node release-ballast --data-dir %s' there", formatBytes(space.Stop), d.Dir)}}
	}
	return nil
}

// pollMembers requests the status of all other members at once. The last status of
// a member that does not answer is used until it is stale.
func (m *Monitor) pollMembers() {
	var requests sync.WaitGroup
	for _, member := range m.cfg.Members() {
		if member == m.cfg.Node {
			continue
		}
		requests.Go(func() {
			status, err := m.cfg.PeerStatus(member)
			if err != nil || status.Node != member {
				return
			}
			m.mu.Lock()
			m.received[member] = receivedStatus{status, time.Now()}
			m.mu.Unlock()
		})
	}
	requests.Wait()
}

// updateIntake closes or opens the intake if the reason to do so has changed.
func (m *Monitor) updateIntake() {
	reason, othersAccept := m.closeReason()
	m.mu.Lock()
	changed := reason != m.closedReason || othersAccept != m.othersAccept
	m.closedReason, m.othersAccept = reason, othersAccept
	m.mu.Unlock()
	if !changed {
		return
	}
	if reason != "" {
		m.log.Warn("job intake closed", "reason", reason)
	} else {
		m.log.Info("job intake reopened")
	}
	m.cfg.SetClosed(reason, othersAccept)
}

// closeReason returns why the intake must be closed, "" if it need not be, and
// whether other members accept jobs. They do unless so many disks are low that no
// majority is left to store a record.
func (m *Monitor) closeReason() (reason string, othersAccept bool) {
	low, members := m.MembersAtLevel(LevelLow), len(m.cfg.Members())
	switch {
	case len(low) > 0 && members-len(low) <= members/2:
		return "not enough free space on the disk of " + strings.Join(low, ", ") + ": a job needs a majority of disks", false
	case m.Status().DiskLevel >= LevelLow:
		return "not enough free space on the disk of this node, " + m.cfg.Node, true
	}
	return "", true
}

// PeerStatuses returns the other members' statuses that are not stale, sorted by
// name.
func (m *Monitor) PeerStatuses() []NodeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var statuses []NodeStatus
	for _, r := range m.received {
		if time.Since(r.receivedAt) < StaleAfter {
			statuses = append(statuses, r.NodeStatus)
		}
	}
	slices.SortFunc(statuses, func(a, b NodeStatus) int { return strings.Compare(a.Node, b.Node) })
	return statuses
}

// MembersAtLevel returns the sorted names of the members, including this node,
// whose disk is at level or worse.
func (m *Monitor) MembersAtLevel(level DiskLevel) (names []string) {
	for _, s := range append(m.PeerStatuses(), m.Status()) {
		if s.DiskLevel >= level {
			names = append(names, s.Node)
		}
	}
	slices.Sort(names)
	return names
}

// ShouldNotLead reports whether a member should lead no lane, because its disk is low, or
// because it is stopping or drained.
func (m *Monitor) ShouldNotLead(member string) bool {
	isLeaving := slices.ContainsFunc(m.PeerStatuses(), func(s NodeStatus) bool { return s.Node == member && s.Leaving })
	return isLeaving || slices.Contains(m.MembersAtLevel(LevelLow), member)
}

// Behind reports whether a member is far behind in a Raft group of a stream and should not
// become a leader yet. A member whose latest status is older than freshFor counts as behind:
// it may have started again since.
func (m *Monitor) Behind(member string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if member == m.cfg.Node {
		return m.status.Behind
	}
	r, known := m.received[member]
	return !known || time.Since(r.receivedAt) > freshFor || r.Behind
}

// Status returns this node's status.
func (m *Monitor) Status() NodeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// DrainWarnings returns a warning for each drained member, because a drain is easily
// forgotten.
func (m *Monitor) DrainWarnings() (warnings []string) {
	for _, s := range append(m.PeerStatuses(), m.Status()) {
		if !s.Drained.IsZero() {
			warnings = append(warnings, fmt.Sprintf("%s is drained since %s: it takes no work until 'yardmaster node resume %s', or until it starts again",
				s.Node, ledger.FormatTime(s.Drained), s.Node))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// SpaceIsScarce reports whether the disk had so little free space at the last check that files which can be
// rebuilt should be deleted, or would have with this many more bytes in use. It does so before jobs are refused.
func (m *Monitor) SpaceIsScarce(more int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	with := m.freeSpace
	with.Free -= more
	return m.scarce || more > 0 && with.scarce(true)
}

// FreeSpace returns the free disk space at the last check.
func (m *Monitor) FreeSpace() FreeSpace {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.freeSpace
}

// ClosedReason returns why the intake is closed, "" if it is open.
func (m *Monitor) ClosedReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closedReason
}

// HoldReason returns why this node, as the authority, has stopped ingesting
// records, or "". It holds until another member with enough space has the
// authority, or for as long as there is none.
func (m *Monitor) HoldReason() string {
	if m.Status().DiskLevel < LevelCritical {
		return ""
	}
	return fmt.Sprintf("the disk of the authority's node, %s, has next to no room: no more jobs are taken from the lanes until there is; free space there, or release its ballast", m.cfg.Node)
}

// Reasons returns the conditions of this node and the others as readiness reasons,
// except those that the readiness determines itself.
func (m *Monitor) Reasons() (reasons []string) {
	for _, s := range append(m.PeerStatuses(), m.Status()) {
		for _, c := range s.Conditions {
			if c.Kind != JetStream && c.Kind != NoLane {
				reasons = append(reasons, fmt.Sprintf("node %s: %s", s.Node, c.Text))
			}
		}
	}
	slices.Sort(reasons)
	return reasons
}

// joinTexts returns the texts of conditions in one string.
func joinTexts(conditions []Condition) string {
	texts := make([]string, len(conditions))
	for i, c := range conditions {
		texts[i] = c.Text
	}
	return strings.Join(texts, "; ")
}
