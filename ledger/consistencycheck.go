package ledger

// KindCheckConsistency is outside the blocks of command.go because it was added
// later.
const KindCheckConsistency Kind = 34

// CheckConsistency changes nothing. Each member hashes its ledger as it is
// after this command's entry; if the hashes differ, a replica has diverged.
type CheckConsistency struct{}

// Kind returns KindCheckConsistency.
func (*CheckConsistency) Kind() Kind { return KindCheckConsistency }

func (*CheckConsistency) apply(*Ledger) Result { return Result{} }
