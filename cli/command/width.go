package command

import (
	"os"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/term"
)

// minColumn is the width below which fitColumns does not narrow a column, in characters.
const minColumn = 8

// uuid matches a text that begins with a UUID.
var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// width returns the width of the terminal in characters, or 0 if standard output is not a terminal.
func (env *Env) width() int {
	f, ok := env.Out.(*os.File)
	if !ok || !term.IsTerminal(f.Fd()) {
		return 0
	}
	width, _, err := term.GetSize(f.Fd())
	if err != nil {
		return 0
	}
	return width
}

// fitColumns narrows the columns of tables to a width in characters: the widest column first, and no
// column below minColumn. Cells are separated by tabs. A cell that is cut ends with "…". The first
// column and columns with ids are not cut, so that users can copy them. Lines of fewer than three
// cells, which are fields and texts, are not changed. A width of 0 means no limit.
func fitColumns(text string, width int) string {
	if width <= 0 {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	for start := 0; start < len(lines); {
		columns, end := strings.Count(lines[start], "\t")+1, start
		for end < len(lines) && strings.Count(lines[end], "\t")+1 == columns {
			end++
		}
		if columns >= 3 {
			fitTable(lines[start:end], width)
		}
		start = end
	}
	return strings.Join(lines, "")
}

// fitTable cuts the cells of lines that all have the same number of cells.
func fitTable(lines []string, width int) {
	widest := make([]int, strings.Count(lines[0], "\t")+1)
	isWhole := make([]bool, len(widest))
	isWhole[0] = true
	for _, line := range lines {
		for i, cell := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			widest[i] = max(widest[i], utf8.RuneCountInString(cell))
			isWhole[i] = isWhole[i] || uuid.MatchString(cell)
		}
	}
	excess := 2*(len(widest)-1) - width // the padding of Table
	for _, w := range widest {
		excess += w
	}
	if excess <= 0 {
		return
	}
	for ; excess > 0; excess-- {
		next := -1
		for i, w := range widest {
			if !isWhole[i] && w > minColumn && (next < 0 || w > widest[next]) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		widest[next]--
	}
	for n, line := range lines {
		body, hasBreak := strings.CutSuffix(line, "\n")
		cells := strings.Split(body, "\t")
		for i, cell := range cells {
			cells[i] = fit(cell, widest[i])
		}
		lines[n] = strings.Join(cells, "\t")
		if hasBreak {
			lines[n] += "\n"
		}
	}
}
