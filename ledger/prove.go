package ledger

// KindProve is followed by what else protects a yard from itself.
const KindProve Kind = 34

// Prove changes nothing. Each member makes the hash of its ledger as it is right
// after this command's entry: they are all the same, or a replica has diverged.
type Prove struct{}

// Kind numbers the command.
func (*Prove) Kind() Kind { return KindProve }
