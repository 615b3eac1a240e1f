package clustertest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// table is formatted like the tables of nats.
type table struct {
	title      string
	head, foot []string
	rows       [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) String() string {
	width := make([]int, len(t.head))
	for _, row := range append([][]string{t.head, t.foot}, t.rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	whole := -1
	for _, w := range width {
		whole += w + 3
	}
	rule := func(left, cross, right string) string {
		parts := make([]string, len(width))
		for i, w := range width {
			parts[i] = strings.Repeat("─", w+2)
		}
		return left + strings.Join(parts, cross) + right + "\n"
	}
	line := func(cells []string) string {
		text := "│"
		for i, cell := range cells {
			text += " " + cell + strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)) + " │"
		}
		return text + "\n"
	}
	left := max((whole-len(t.title))/2, 0)
	text := "╭" + strings.Repeat("─", whole) + "╮\n│" + strings.Repeat(" ", left) + t.title +
		strings.Repeat(" ", max(whole-left-len(t.title), 0)) + "│\n" + rule("├", "┬", "┤") + line(t.head) + rule("├", "┼", "┤")
	for _, row := range t.rows {
		text += line(row)
	}
	if t.foot != nil {
		text += rule("├", "┼", "┤") + line(t.foot)
	}
	return text + rule("╰", "┴", "╯")
}

// formatCount formats a number with commas.
func formatCount(n uint64) string {
	text := strconv.FormatUint(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// formatSize formats a number of bytes in units of 1024.
func formatSize(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	amount, unit := float64(n), -1
	for amount >= 1024 {
		amount, unit = amount/1024, unit+1
	}
	if amount < 10 {
		return fmt.Sprintf("%.1f %ciB", amount, "KMGT"[unit])
	}
	return fmt.Sprintf("%.0f %ciB", amount, "KMGT"[unit])
}

func formatAge(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return formatDuration(time.Since(at))
}

// formatDuration formats a duration.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.2fs", d.Seconds())
	}
	return d.Truncate(time.Second).String()
}

// jqPath evaluates a path on each value.
func jqPath(values []json.RawMessage, path string) ([]json.RawMessage, error) {
	var found []json.RawMessage
	for _, v := range values {
		switch {
		case path == "" || path == ".":
			found = append(found, v)
		case strings.HasPrefix(path, "|"), strings.HasPrefix(path, ".["), strings.HasPrefix(path, ".{"):
			deeper, err := jqPath([]json.RawMessage{v}, path[1:])
			if err != nil {
				return nil, err
			}
			found = append(found, deeper...)
		case path[0] == '{':
			some, err := selectKeys(v, strings.Split(strings.Trim(path, "{}"), ","))
			if err != nil {
				return nil, err
			}
			found = append(found, some)
		case path[0] == '[':
			index, rest, _ := strings.Cut(path[1:], "]")
			var list []json.RawMessage
			if err := json.Unmarshal(v, &list); err != nil {
				return nil, err
			}
			if n, err := strconv.Atoi(index); err == nil && n < len(list) {
				list = list[n : n+1]
			}
			deeper, err := jqPath(list, rest)
			if err != nil {
				return nil, err
			}
			found = append(found, deeper...)
		default:
			end := strings.IndexAny(path[1:], ".[|") + 1
			if end == 0 {
				end = len(path)
			}
			var object map[string]json.RawMessage
			if err := json.Unmarshal(v, &object); err != nil {
				return nil, fmt.Errorf("%s of %s: %w", path, v, err)
			}
			inner := object[path[1:end]]
			if inner == nil {
				inner = json.RawMessage("null")
			}
			deeper, err := jqPath([]json.RawMessage{inner}, path[end:])
			if err != nil {
				return nil, err
			}
			found = append(found, deeper...)
		}
	}
	return found, nil
}

// selectKeys returns an object with some keys of another.
func selectKeys(v json.RawMessage, keys []string) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(v, &object); err != nil {
		return nil, err
	}
	var parts []string
	for _, key := range keys {
		value := object[key]
		if value == nil {
			value = json.RawMessage("null")
		}
		parts = append(parts, strconv.Quote(key)+":"+string(value))
	}
	return json.RawMessage("{" + strings.Join(parts, ",") + "}"), nil
}

func layout(v json.RawMessage, compact bool) string {
	var out bytes.Buffer
	var err error
	if compact {
		err = json.Compact(&out, v)
	} else {
		err = json.Indent(&out, v, "", "  ")
	}
	if err != nil {
		return err.Error()
	}
	return out.String()
}
