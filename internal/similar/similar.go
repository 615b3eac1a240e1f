// Package similar finds the name of which a text is probably a misspelling.
package similar

import "strings"

// maxLen is the longest text that is compared, in bytes: the time grows with the product of the
// lengths.
const maxLen = 64

// Name returns the one of names that text is most likely a misspelling of, such as
// "max_attempts" for "max_attemps", or "" if none is close to it. It ignores case.
func Name(text string, names []string) string {
	best, distance := "", 2
	if len(text) > 4 {
		distance = 3
	}
	if len(text) < 3 || len(text) > maxLen {
		return ""
	}
	for _, name := range names {
		if len(name) > maxLen {
			continue
		}
		if d := Distance(strings.ToLower(text), strings.ToLower(name)); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// Distance returns the number of bytes to insert, remove, replace, or swap with the next
// one to turn a into b.
func Distance(a, b string) int {
	var rows [3][]int // the rows of the last two bytes of a, and that of the current one
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
	}
	for j := range rows[2] {
		rows[2][j] = j
	}
	for i := 1; i <= len(a); i++ {
		rows[0], rows[1], rows[2] = rows[1], rows[2], rows[0]
		rows[2][0] = i
		for j := 1; j <= len(b); j++ {
			d := rows[1][j-1]
			if a[i-1] != b[j-1] {
				d = 1 + min(d, rows[1][j], rows[2][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[0][j-2]+1)
			}
			rows[2][j] = d
		}
	}
	return rows[2][len(b)]
}
