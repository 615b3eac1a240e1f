package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"yardmaster/cluster"
	"yardmaster/consensus"
	"yardmaster/vigil"
)

// Exit codes of a node that has ended itself, for those who start it again: see
// docs/self-protection.md.
const (
	ExitOut     = 3 // its directory was taken out of its yard for good
	ExitDamaged = 4 // what it keeps is damaged, or not the yard's: a start more mends nothing
	ExitDisk    = 5 // its disk hangs, fails or is full: it may be started again, but not at once
)

// HaltError is why a node has ended itself, and with which code the process
// should.
type HaltError struct {
	Code int
	Err  error // says what to do, behind a semicolon
}

func (e *HaltError) Error() string { return e.Err.Error() }
func (e *HaltError) Unwrap() error { return e.Err }

// ErrAgain ends a node that is to be run again in the same process, with a new
// [Node]: it has found that only a start mends what it has.
var ErrAgain = errors.New("the node has to be started again")

// haltOf gives an error that ended a node its exit code, if it has one.
func (n *Node) haltOf(err error) error {
	var damage *consensus.DamagedError // says itself what to do
	var gone *consensus.GoneError      // and this one, too
	var halt *HaltError
	switch {
	case errors.As(err, &halt):
		return err
	case errors.As(err, &gone):
		return &HaltError{ExitOut, err}
	case errors.As(err, &damage):
		return &HaltError{ExitDamaged, err}
	}
	return err
}

// noMessages is why a node without NATS ends.
func (n *Node) noMessages(err error) error {
	if errors.Is(err, cluster.ErrDamaged) {
		return &HaltError{ExitDamaged, fmt.Errorf("%w; %s", err, n.replaceText())}
	}
	return portInUse(fmt.Errorf("start NATS: %w", err), "nats.listen")
}

// replaceText says what to do with a member that cannot go on.
func (n *Node) replaceText() string {
	if !n.cfg.Clustered() {
		return "restore the yard from a backup: nobody else has what is lost"
	}
	return fmt.Sprintf("the other members have all that it had: keep %s aside, and at one of them run 'yardmaster cluster replace %s'", n.cfg.Node.DataDir, n.cfg.Node.Name)
}

// halted ends the process, from where nothing can be returned: a goroutine of
// raft's, which would panic, or beside one that hangs in the kernel.
func (n *Node) halted(code int, err error) {
	n.log.Error("this node ends itself", "exit_code", code, "error", err)
	os.Exit(code)
}

// diskHalted ends the process because of its disk, or of what lies there.
func (n *Node) diskHalted(err error) {
	var damage *consensus.DamagedError
	if errors.As(err, &damage) {
		n.halted(ExitDamaged, err)
	}
	n.halted(ExitDisk, fmt.Errorf("%w; mend the disk, or free space in %s, if need be by 'yardmaster node release-ballast'; then start the node again", err, n.cfg.Node.DataDir))
}

// thawEvery is how often a node looks whether its JetStream has stopped.
const thawEvery = 2 * time.Second

// thaw ends the node with [ErrAgain] when JetStream has stopped although the disk
// has room: it had none, and starts writing again only with its server.
func (n *Node) thaw(ctx context.Context) error {
	tick := time.NewTicker(thawEvery)
	defer tick.Stop()
	for frozen := 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if n.messages.Frozen() == "" || n.keeper.Mine().Level != vigil.Roomy {
			frozen = 0
			continue
		}
		if frozen++; frozen == 2 { // not while it just stops
			n.log.Warn("the disk has room again: starting anew, so that JetStream writes again")
			return ErrAgain
		}
	}
}
