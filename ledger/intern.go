package ledger

import "strings"

// maxInterned bounds the table of shared names; beyond it, names are not
// shared, which costs memory and nothing else.
const maxInterned = 65536

// intern shares one copy of a name among all records that hold it. The table
// is not part of the state: two ledgers that differ in it are equal.
func (j *jobs) intern(s string) string {
	if s == "" {
		return ""
	}
	if shared, ok := j.names[s]; ok {
		return shared
	}
	s = strings.Clone(s)
	if len(j.names) >= maxInterned {
		clear(j.names)
	}
	j.names[s] = s
	return s
}

// internHand shares one copy of a hand, with its names.
func (j *jobs) internHand(h hand) *hand {
	if shared, ok := j.hands[h]; ok {
		return shared
	}
	h.node, h.channel = j.intern(h.node), j.intern(h.channel)
	if len(j.hands) >= maxInterned {
		clear(j.hands)
	}
	j.hands[h] = &h
	return &h
}
