package check

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Lease is an event of history about the authority.
type Lease struct {
	Acquired bool // else renewed
	Owner    string
	ID       string // <epoch>-<owner>
	At       int64  // by the host's clock, in nanoseconds
}

// View is whom a node calls the authority.
type View struct {
	Node  string
	Life  int // of the node: one that has just started knows less than it did
	Owner string
	Epoch uint64
	At    int64
}

// Leases holds the history of the authority against the model of a lock, and
// what each node showed against that history. It says what is wrong.
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
				wrong = append(wrong, fmt.Sprintf("epoch %d is of %s and of %s", epoch, o, l.Owner))
			}
			owners[epoch], last = l.Owner, epoch
		}
		ops = append(ops, porcupine.Operation{Input: take{l.Acquired, held{l.Owner, epoch}}, Call: int64(i), Return: int64(i)})
	}
	if porcupine.CheckOperationsTimeout(lock, ops, patience) != porcupine.Ok {
		wrong = append(wrong, "no order of acquisitions and renewals makes sense of history's leases")
	}
	return append(wrong, seen(owners, views)...)
}

// seen: a node never goes back to an older authority while it lives, and none
// shows one that history does not know.
func seen(owners map[uint64]string, views []View) (wrong []string) {
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
			wrong = append(wrong, fmt.Sprintf("%s showed %s with epoch %d; history says %q", v.Node, v.Owner, v.Epoch, o))
		}
		l := life{v.Node, v.Life}
		if v.Epoch < highest[l] {
			wrong = append(wrong, fmt.Sprintf("%s showed epoch %d after %d", v.Node, v.Epoch, highest[l]))
		}
		highest[l] = max(highest[l], v.Epoch)
	}
	return wrong
}

// held is the state of the lock.
type held struct {
	owner string
	epoch uint64
}

type take struct {
	acquire bool
	held
}

// lock is held by one at a time; who takes it over has a higher epoch, and who
// renews it still has it.
var lock = porcupine.Model{
	Init: func() any { return held{} },
	Step: func(state, input, _ any) (bool, any) {
		now, t := state.(held), input.(take)
		if t.acquire {
			return t.epoch > now.epoch, t.held
		}
		return t.held == now, now
	},
}

// patience bounds a search that may take for ever.
const patience = 20 * time.Second

func epochOf(lease string) (uint64, error) {
	text, _, _ := strings.Cut(lease, "-")
	epoch, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the lease %q has no epoch", lease)
	}
	return epoch, nil
}
