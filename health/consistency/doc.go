// Package consistency checks that the ledgers of all members are the same. The authority
// chooses entries; at each, every member hashes its ledger and compares the hash with
// those of the others. A member whose ledger differs from the majority's marks its data
// directory, which it must not use again, and ends.
package consistency
