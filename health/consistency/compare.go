package consistency

import (
	"fmt"
	"slices"
	"strings"
)

// hashComparison is the result of comparing the hashes of members.
type hashComparison struct {
	majority string   // the hash of more than half of the members; "": there is none
	diverged []string // members with another hash
	split    []string // all members that answered, if hashes differ without a majority
}

// compareHashes compares hashes, which are by member. Its majority is one of all members,
// also of those without a hash.
func compareHashes(hashes map[string]string, members []string) (result hashComparison) {
	votes := map[string]int{}
	for _, hash := range hashes {
		votes[hash]++
	}
	for hash, n := range votes {
		if n > len(members)/2 {
			result.majority = hash
		}
	}
	for member, hash := range hashes {
		switch {
		case len(votes) < 2:
		case result.majority == "":
			result.split = append(result.split, member)
		case hash != result.majority:
			result.diverged = append(result.diverged, member)
		}
	}
	slices.Sort(result.diverged)
	slices.Sort(result.split)
	return result
}

// findings returns texts about the members whose ledgers differ, with what to do, by
// member. The text under "" is about several members.
func (c *hashComparison) findings(index uint64) map[string]string {
	texts := map[string]string{}
	for _, member := range c.diverged {
		texts[member] = fmt.Sprintf("member %s's ledger is not the yard's at entry %d: it ends itself; run 'yardmaster cluster replace %s'", member, index, member)
	}
	if len(c.split) > 0 {
		texts[""] = fmt.Sprintf("the ledgers of %s differ at entry %d, and no majority says which is right: start the other members", strings.Join(c.split, ", "), index)
	}
	return texts
}

func shortHash(hash string) string { return hash[:min(8, len(hash))] }
