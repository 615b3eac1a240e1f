package command

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// tables are lines of text and of tables, of which it knows what may be left out on a narrow
// terminal.
type tables struct {
	bytes.Buffer
	least map[string][]string // by line of titles: the columns that may be left out
}

// Titles writes the titles of a table's columns, separated by tabs. least lists the columns that a
// narrow terminal may leave out, the least important one first. All other columns are always shown,
// such as the name and the state of a queue.
func Titles(w io.Writer, titles string, least ...string) {
	if t, ok := w.(*tables); ok {
		if t.least == nil {
			t.least = make(map[string][]string)
		}
		t.least[titles] = least
	}
	fmt.Fprintln(w, titles)
}

// minCells is the number of cells from which on lines are a table. Lines of fewer cells are texts and
// named values, which are not fitted to a terminal.
const minCells = 3

// fit returns the lines with their cells aligned, and fitted to a terminal's width in characters, where 0 means
// no limit. leftOut are the titles of the columns that were left out. Consecutive lines with the same
// number of cells are a table. It continues the table that before describes unless before is nil,
// and before then describes the last table in the text.
func (t *tables) fit(width int, before *layout, now time.Time) (text []byte, leftOut []string) {
	var out bytes.Buffer
	lines := strings.SplitAfter(t.String(), "\n")
	texts := 0 // where the lines begin that are no table and are not written yet
	flush := func(end int) {
		w := Table(&out)
		fmt.Fprint(w, strings.Join(lines[texts:end], ""))
		w.Flush() // a bytes.Buffer does not fail
	}
	for start := 0; start < len(lines); {
		cells, end := strings.Count(lines[start], "\t")+1, start+1
		for end < len(lines) && strings.Count(lines[end], "\t")+1 == cells {
			end++
		}
		if cells >= minCells {
			flush(start)
			l := newLayout(lines[start:end], t.least)
			if before != nil && !l.hasTitles && len(before.shown) > 0 && before.cells == cells {
				l.shown, l.shortTimes, l.least = before.shown, before.shortTimes, nil
			}
			leftOut = append(leftOut, l.fit(width, now)...)
			l.write(&out)
			if texts = end; before != nil {
				before.cells, before.shown, before.shortTimes = cells, l.shown, l.shortTimes
			}
		}
		start = end
	}
	flush(len(lines))
	return out.Bytes(), leftOut
}

// writeTables writes lines to standard output or standard error, fitted to the terminal. See [tables.fit] for
// before.
func (env *Env) writeTables(out io.Writer, t *tables, before *layout) error {
	width := Width(out)
	text, leftOut := t.fit(width, before, time.Now())
	_, err := out.Write(text)
	if err == nil && len(leftOut) > 0 {
		env.Note("%s", leftOutText(leftOut, width))
	}
	return err
}

// leftOutText returns a note about the columns that were left out, with their titles if these fit
// on one line.
func leftOutText(titles []string, width int) string {
	slices.Sort(titles)
	titles = slices.Compact(titles)
	const format = "%s not shown, for lack of width; --json shows all"
	if text := fmt.Sprintf(format, strings.Join(titles, ", ")); len("yardmaster: ")+len(text) <= width {
		return text
	}
	return fmt.Sprintf(format, fmt.Sprint(len(titles), " columns"))
}
