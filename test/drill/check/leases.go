package check

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Lease is an acquisition or renewal of the authority, as history reports it.
type Lease struct {
	Acquired bool // else renewed
	Owner    string
	ID       string // <epoch>-<owner>
	At       int64  // by the host's clock, in nanoseconds
}

// View is the authority that a node reported when it was sampled.
type View struct {
	Node  string
	Life  int // number of the node's start; after a restart it may know less
	Owner string
	Epoch uint64
	At    int64
}

// Leases checks the history of the authority against the model of a lock, and the
// views of the nodes against that history. It returns the violations.
func Leases(history []Lease, views []View) (wrong []string) {
	owners := make(map[uint64]string)
	var ops []porcupine.Operation
	last := uint64(0)
	for i, l := range history {
		epoch, err := epochOf(l.ID)
		if err != nil {
			return []string{err.Error()}
		}
		if l.Acquired {
			if epoch <= last {
				wrong = append(wrong, fmt.Sprintf("epoch %d follows epoch %d", epoch, last))
			}
			if o, taken := owners[epoch]; taken && o != l.Owner {
				wrong = append(wrong, fmt.Sprintf("epoch %d was acquired by %s and by %s", epoch, o, l.Owner))
			}
			owners[epoch], last = l.Owner, epoch
		}
		ops = append(ops, porcupine.Operation{Input: acquisition{l.Acquired, leaseHolder{l.Owner, epoch}}, Call: int64(i), Return: int64(i)})
	}
	if porcupine.CheckOperationsTimeout(lock, ops, porcupineTimeout) != porcupine.Ok {
		wrong = append(wrong, "the acquisitions and renewals in history do not follow from one another")
	}
	return append(wrong, checkViews(owners, views)...)
}

// checkViews returns the views of an authority that history does not have, and
// those with a lower epoch than the same node showed before in the same life.
func checkViews(owners map[uint64]string, views []View) (wrong []string) {
	type life struct {
		node string
		n    int
	}
	highest := make(map[life]uint64)
	for _, v := range views {
		if v.Epoch == 0 {
			continue
		}
		if o, known := owners[v.Epoch]; !known || o != v.Owner {
			wrong = append(wrong, fmt.Sprintf("%s showed %s with epoch %d; history has %q", v.Node, v.Owner, v.Epoch, o))
		}
		l := life{v.Node, v.Life}
		if v.Epoch < highest[l] {
			wrong = append(wrong, fmt.Sprintf("%s showed epoch %d after %d", v.Node, v.Epoch, highest[l]))
		}
		highest[l] = max(highest[l], v.Epoch)
	}
	return wrong
}

// leaseHolder is the state of the lock: its holder and epoch.
type leaseHolder struct {
	owner string
	epoch uint64
}

// acquisition is an operation on the lock: an acquisition or, if acquire is false,
// a renewal.
type acquisition struct {
	acquire bool
	leaseHolder
}

// lock models the authority: an acquisition must have a higher epoch than the
// current one, and only the current holder can renew.
var lock = porcupine.Model{
	Init: func() any { return leaseHolder{} },
	Step: func(state, input, _ any) (bool, any) {
		current, op := state.(leaseHolder), input.(acquisition)
		if op.acquire {
			return op.epoch > current.epoch, op.leaseHolder
		}
		return op.leaseHolder == current, current
	},
}

// porcupineTimeout limits one search, which may take exponential time.
const porcupineTimeout = 20 * time.Second

// epochOf returns the epoch of a lease id.
func epochOf(lease string) (uint64, error) {
	text, _, _ := strings.Cut(lease, "-")
	epoch, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the lease %q has no epoch", lease)
	}
	return epoch, nil
}
