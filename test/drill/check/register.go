package check

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Operation is one attempt to create a name that must not exist or to remove one
// that must exist. Which attempts succeed reveals the order in which the cluster
// executed them.
type Operation struct {
	Writer   int
	Name     string
	Create   bool // else remove
	Answer   Answer
	From, To int64 // request and answer, by the host's clock in nanoseconds
}

// Answer is the result of an operation.
type Answer int

const (
	Unknown Answer = iota // no answer, or an inconclusive one: it may take effect at any later time
	Done
	Refused // the name exists already, or does not exist
)

// Linearizable reports whether some order of the operations explains every
// answer. If the search exceeds its time limit, ok is false and undecided true.
func Linearizable(changes []Operation) (ok, undecided bool) {
	var ops []porcupine.Operation
	for _, c := range changes {
		op := porcupine.Operation{ClientId: c.Writer, Input: change{c.Name, c.Create}, Output: c.Answer, Call: c.From, Return: c.To}
		if c.Answer == Unknown {
			op.Return = math.MaxInt64
		}
		ops = append(ops, op)
	}
	result := porcupine.CheckOperationsTimeout(register, ops, porcupineTimeout)
	return result == porcupine.Ok, result == porcupine.Unknown
}

// change is the input of an operation on the register.
type change struct {
	name   string
	create bool
}

// register models a set of names; each name is a separate register.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		of := make(map[string][]porcupine.Operation)
		for _, op := range history {
			name := op.Input.(change).name
			of[name] = append(of[name], op)
		}
		for _, name := range slices.Sorted(maps.Keys(of)) {
			parts = append(parts, of[name])
		}
		return parts
	},
	Init: func() any { return false },
	Step: func(state, input, output any) (bool, any) {
		there, c := state.(bool), input.(change)
		switch output.(Answer) {
		case Done:
			return there != c.create, c.create
		case Refused:
			return there == c.create, there
		}
		return true, c.create // it may have taken effect; a repetition changes nothing
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
}
