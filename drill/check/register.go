package check

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Change is one try to make a name that must not be there, or to take away one
// that must be: what succeeds and what is refused tells in which order the yard
// decided.
type Change struct {
	Writer    int
	Name      string
	Make      bool // else remove
	Answer    Answer
	From, Til int64 // when it was asked and answered, by the host's clock
}

// Answer is what came back.
type Answer int

const (
	Unknown Answer = iota // nothing, or that nobody knows: it may yet happen
	Done
	Refused // it is there already, or not there
)

// Decided tells whether one order of all changes explains every answer; ok is
// false, too, if that was not found out in time, which undecided says.
func Decided(changes []Change) (ok, undecided bool) {
	var ops []porcupine.Operation
	for _, c := range changes {
		op := porcupine.Operation{ClientId: c.Writer, Input: change{c.Name, c.Make}, Output: c.Answer, Call: c.From, Return: c.Til}
		if c.Answer == Unknown {
			op.Return = math.MaxInt64
		}
		ops = append(ops, op)
	}
	result := porcupine.CheckOperationsTimeout(register, ops, patience)
	return result == porcupine.Ok, result == porcupine.Unknown
}

type change struct {
	name string
	make bool
}

// register is one name: there, or not.
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
			return there != c.make, c.make
		case Refused:
			return there == c.make, there
		}
		return true, c.make // it happened, or will; making what is there changes nothing
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
}
