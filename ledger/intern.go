package ledger

import "strings"

// maxInterned limits the table of shared names. When it is full the table
// starts again from empty, which costs memory and nothing else.
const maxInterned = 65536

// intern returns a shared copy of a name. The table is not part of the state:
// it may differ between ledgers that are equal.
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

// internExecutor returns a shared copy of an executor, with shared names.
func (j *jobs) internExecutor(x executor) *executor {
	if shared, ok := j.executors[x]; ok {
		return shared
	}
	x.node, x.channel = j.intern(x.node), j.intern(x.channel)
	if len(j.executors) >= maxInterned {
		clear(j.executors)
	}
	j.executors[x] = &x
	return &x
}
