package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"
)

// Width returns the width of the terminal in characters, or 0 if out is not a terminal.
func Width(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(f.Fd()) {
		return 0
	}
	width, _, err := term.GetSize(f.Fd())
	if err != nil {
		return 0
	}
	return width
}

// Widths of columns, in characters. Before a column is left out, the others are cut to the widths that
// still tell names apart; where none may be left out any more, to the minimum.
const (
	padding     = 2  // between two columns
	nameWidth   = 20 // of the first column, before others are left out
	textWidth   = 14 // of any other column, likewise
	minimum     = 8
	minimumName = 12 // of the first column
)

// layout is how a table is shown.
type layout struct {
	rows       [][]string
	hasTitles  bool // the first row has the titles
	least      []string
	cells      int    // of each row
	shown      []int  // indices of the columns that are shown
	full       []int  // widths of all columns at which nothing is cut
	widths     []int  // widths of all columns; set by fit
	isText     []bool // of all columns: their cells may be cut
	shortTimes bool   // times are shown as ages
}

// newLayout returns the layout of lines with the same number of cells, all of which are shown. least has
// the columns that may be left out by line of titles.
func newLayout(lines []string, least map[string][]string) *layout {
	l := &layout{}
	for _, line := range lines {
		l.rows = append(l.rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	l.least, l.hasTitles = least[strings.TrimSuffix(lines[0], "\n")]
	l.cells = len(l.rows[0])
	for i := range l.rows[0] {
		l.shown = append(l.shown, i)
	}
	return l
}

// fit sets the widths of the columns, so that the table fits a width if that is possible: it shows
// times as ages, cuts texts, and leaves out columns, whose titles it returns. A width of 0 means no limit.
func (l *layout) fit(width int, now time.Time) (leftOut []string) {
	if l.shortTimes {
		l.shortenTimes(now)
	}
	l.measure()
	if l.widths = l.full; width <= 0 || l.width() <= width {
		return nil
	}
	l.shortenTimes(now)
	l.measure()
	l.shrink(width, nameWidth, textWidth)
	for _, title := range l.least {
		if l.width() <= width {
			return leftOut
		}
		column := slices.Index(l.rows[0], title)
		l.shown = slices.DeleteFunc(slices.Clone(l.shown), func(i int) bool { return i == column })
		leftOut = append(leftOut, title)
		l.shrink(width, nameWidth, textWidth)
	}
	if l.width() > width {
		l.shrink(width, minimumName, minimum)
	}
	return leftOut
}

var (
	// uuid matches a text that begins with a UUID.
	uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	// number matches a number such as "1.5", and the "-" of a cell without one.
	number = regexp.MustCompile(`^(\d[\d.]*|-)$`)
)

// measure sets the widths at which nothing is cut, and which columns may be cut: those that have neither
// ids, which users copy, nor only numbers.
func (l *layout) measure() {
	l.full, l.isText = make([]int, l.cells), make([]bool, l.cells)
	for i := range l.cells {
		hasID := false
		for n, row := range l.rows {
			l.full[i] = max(l.full[i], ansi.StringWidth(row[i]))
			hasID = hasID || uuid.MatchString(row[i])
			l.isText[i] = l.isText[i] || !number.MatchString(row[i]) && (n > 0 || !l.hasTitles)
		}
		l.isText[i] = l.isText[i] && !hasID
	}
}

// width returns the width of the table.
func (l *layout) width() int {
	width := padding * (len(l.shown) - 1)
	for _, i := range l.shown {
		width += l.widths[i]
	}
	return width
}

// shrink sets the widths of the columns. Until the table fits a width, it takes from the widest column
// of texts, but leaves the first column and the others a width of their own.
func (l *layout) shrink(width, first, other int) {
	l.widths = slices.Clone(l.full)
	for excess := l.width() - width; excess > 0; excess-- {
		next := -1
		for _, i := range l.shown {
			least := other
			if i == 0 {
				least = first
			}
			if l.widths[i] > least && (next < 0 || l.widths[i] > l.widths[next]) && l.isText[i] {
				next = i
			}
		}
		if next < 0 {
			return
		}
		l.widths[next]--
	}
}

// timeCell matches a cell with a time in UTC, such as "due 2026-03-19T01:00:00Z".
var timeCell = regexp.MustCompile(`^(due |ended )?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)$`)

// shortenTimes replaces times by the time since then, such as "5m ago", or until then, such as "in 3h".
func (l *layout) shortenTimes(now time.Time) {
	l.shortTimes = true
	for _, row := range l.rows {
		for i, cell := range row {
			if m := timeCell.FindStringSubmatch(cell); m != nil {
				if at, err := time.Parse(time.RFC3339, m[2]); err == nil {
					row[i] = m[1] + ageText(now.Sub(at))
				}
			}
		}
	}
}

// ageText returns a time that has passed, such as "5m ago", or one that has yet to pass, if it is negative, such
// as "in 5m". It has at most two digits for what is shorter than 100 days.
func ageText(d time.Duration) string {
	form := "%d%s ago"
	if d < 0 {
		d, form = -d, "in %d%s"
	}
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf(form, d/time.Second, "s")
	case d < 100*time.Minute:
		return fmt.Sprintf(form, d/time.Minute, "m")
	case d < 100*time.Hour:
		return fmt.Sprintf(form, d/time.Hour, "h")
	}
	return fmt.Sprintf(form, d/(24*time.Hour), "d")
}

// write writes the table with its columns aligned.
func (l *layout) write(out *bytes.Buffer) {
	for _, row := range l.rows {
		for n, i := range l.shown {
			cell := Shorten(row[i], l.widths[i])
			out.WriteString(cell)
			if n < len(l.shown)-1 {
				out.WriteString(strings.Repeat(" ", l.widths[i]-ansi.StringWidth(cell)+padding))
			}
		}
		out.WriteByte('\n')
	}
}

// Shorten returns a cell cut to a width in characters: a name in the middle, because names often differ at
// their ends only, and any other text at its end.
func Shorten(cell string, width int) string {
	isName := !strings.ContainsAny(cell, ` {["`)
	switch full := ansi.StringWidth(cell); {
	case full <= width:
		return cell
	case isName && width >= minimum:
		tail := (width - 1) / 2
		end := ansi.TruncateLeft(cell, full-tail, "")
		if ansi.StringWidth(end) > tail { // it begins with the second half of a wide character
			end = ansi.TruncateLeft(cell, full-tail+1, "")
		}
		return ansi.Truncate(cell, width-1-tail, "") + "…" + end
	}
	return ansi.Truncate(cell, width, "…")
}
