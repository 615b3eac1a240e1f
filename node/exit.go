package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/embedded"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/health/consistency"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// Exit codes of a node that has ended itself, for its supervisor: see
// docs/guides/operate.md.
const (
	ExitRemoved = 3 // its data directory was removed from the cluster for good
	ExitDamaged = 4 // its data is damaged or belongs to another cluster: a restart does not help
	ExitDisk    = 5 // its disk hangs, fails or is full: restart it after a pause
	ExitRelease = 6 // its log has an entry of another release: start that release
)

// ExitError is the reason why a node has ended itself, with the exit code for the
// process.
type ExitError struct {
	Code int
	Err  error // ends with the remedy, after a semicolon
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

// ErrRestart ends a node that has to run again in the same process, as a new [Node],
// because only a restart of its NATS server resolves what it has found.
var ErrRestart = errors.New("the node has to be started again")

// exitError wraps an error that ended the node in an [*ExitError] if the process
// should exit with a special code.
func exitError(err error, cfg *config.Config) error {
	_, isExit := errors.AsType[*ExitError](err)
	_, isRemoved := errors.AsType[*consensus.RemovedError](err) // its text names the remedy
	_, isDamaged := errors.AsType[*consensus.DamagedError](err) // likewise
	_, hasDiverged := errors.AsType[*consistency.DivergedError](err)
	switch {
	case isExit:
		return err
	case errors.Is(err, embedded.ErrDamaged):
		return &ExitError{ExitDamaged, fmt.Errorf("%w; %s", err, replaceAdvice(cfg))}
	case isRemoved:
		return &ExitError{ExitRemoved, err}
	case isDamaged, hasDiverged:
		return &ExitError{ExitDamaged, err}
	}
	return err
}

// stopMessage is the log message with which every stop of a node begins, apart from those
// that refuse its start. The level is info if it was asked to stop, warn if it was removed
// from the cluster or starts again in the same process, and error otherwise.
const stopMessage = "node stopping"

// logStop logs why the node stops: failure is that of a part of the node, or nil if ctx has
// ended.
func (n *Node) logStop(ctx context.Context, failure error) {
	_, isRemoved := errors.AsType[*consensus.RemovedError](failure)
	switch {
	case failure == nil:
		n.log.Info(stopMessage, "reason", context.Cause(ctx))
	case isRemoved, errors.Is(failure, ErrRestart):
		n.log.Warn(stopMessage, "err", failure)
	default:
		n.log.Error(stopMessage, "err", exitError(failure, &n.cfg))
	}
}

// replaceAdvice returns the remedy for a member that cannot continue.
func replaceAdvice(cfg *config.Config) string {
	if !cfg.Clustered() {
		return "restore the yard from a backup: no other node has what is lost"
	}
	return fmt.Sprintf("the other members have all that it had: keep %s aside, and at one of them run 'yardmaster cluster replace %s'", cfg.Node.DataDir, cfg.Node.Name)
}

// exitAtOnce ends the process because its disk has failed, or its log cannot be applied. No
// error can be returned there: in a goroutine of the Raft library, which would panic, or
// while another goroutine hangs in the kernel.
func (n *Node) exitAtOnce(err error) {
	code, err := exitReason(err, n.cfg.Node.DataDir)
	n.log.Error(stopMessage, "exit_code", code, "err", err)
	os.Exit(code)
}

// exitReason returns the exit code for an error of consensus, and the error with the
// remedy.
func exitReason(err error, dir string) (code int, reason error) {
	_, isDamaged := errors.AsType[*consensus.DamagedError](err)
	_, isOtherRelease := errors.AsType[*consensus.ReleaseError](err)
	switch { // the texts of both name the remedy
	case isDamaged:
		return ExitDamaged, err
	case isOtherRelease:
		return ExitRelease, err
	}
	return ExitDisk, fmt.Errorf("%w; repair the disk, or free space in %s, if need be by 'yardmaster node release-ballast'; then start the node again", err, dir)
}

// resumeInterval is how often a node checks whether JetStream has stopped writing.
const resumeInterval = 2 * time.Second

// resumeJetStream returns [ErrRestart] when JetStream has stopped writing although
// the disk has free space again: after a full disk it writes only once its server has
// been restarted.
func (n *Node) resumeJetStream(ctx context.Context) error {
	tick := time.NewTicker(resumeInterval)
	defer tick.Stop()
	needsRestart := 0 // checks in a row that have found that only a restart helps
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if n.cluster.WriteFailure() == "" || n.monitor.Status().DiskLevel != health.LevelOK {
			needsRestart = 0
			continue
		}
		if needsRestart++; needsRestart == 2 { // at the first, JetStream may have been about to stop
			return fmt.Errorf("the disk has free space again, but JetStream has stopped writing: %w", ErrRestart)
		}
	}
}
