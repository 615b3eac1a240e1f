package top

import (
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// column is a column of the table of queues. The first one is the queue's name.
type column struct {
	title string
	value func(q *api.OverviewQueue) float64 // by which the largest come first
	text  func(q *api.OverviewQueue) string
}

// columns lists the columns in the order in which the table has them.
var columns = []column{
	{"QUEUE", func(*api.OverviewQueue) float64 { return 0 }, func(q *api.OverviewQueue) string { return q.Name }},
	backlogColumn("WAITING", "waiting"), backlogColumn("ACTIVE", "active"), backlogColumn("DELAYED", "delayed"),
	rateColumn("IN/S", func(c *api.OverviewCounts) uint64 { return c.Accepted }),
	rateColumn("DONE/S", func(c *api.OverviewCounts) uint64 { return c.Completed }),
	rateColumn("FAIL/S", failures),
	timeColumn("WAIT P50", func(t *api.OverviewTotals) *float64 { return t.Wait.P50 }),
	timeColumn("WAIT P99", func(t *api.OverviewTotals) *float64 { return t.Wait.P99 }),
	timeColumn("RUN P99", func(t *api.OverviewTotals) *float64 { return t.Run.P99 }),
	{"OLDEST", oldest, func(q *api.OverviewQueue) string {
		if q.Oldest == nil {
			return "-"
		}
		return timeText(oldest(q))
	}},
}

// leastColumns are the titles of the columns that are left out on a narrow terminal, the least important one first.
var leastColumns = []string{"WAIT P50", "RUN P99", "DELAYED", "WAIT P99", "IN/S", "OLDEST", "DONE/S"}

// shownColumns returns the indices of the columns that fit a width beside the names of queues: at least those
// that are not in leastColumns, and the one by which the table is sorted.
func shownColumns(width, sorted int) []int {
	shown := make([]int, len(columns))
	for i := range shown {
		shown[i] = i
	}
	for _, title := range leastColumns {
		if minNameWidth+cellWidth*(len(shown)-1) <= width {
			break
		}
		shown = slices.DeleteFunc(shown, func(i int) bool { return columns[i].title == title && i != sorted })
	}
	return shown
}

// sortDefault is the column by which the table is sorted first: what waits.
const sortDefault = 1

// failures returns how many attempts failed.
func failures(c *api.OverviewCounts) uint64 { return c.Failed + c.Retried }

// oldest returns the age of the oldest waiting job in milliseconds, -1 without one.
func oldest(q *api.OverviewQueue) float64 {
	if q.Oldest == nil {
		return -1
	}
	return float64(q.Oldest.AgeMS)
}

func backlogColumn(title, of string) column {
	value := func(q *api.OverviewQueue) float64 { return float64(q.Backlog[of]) }
	return column{title, value, func(q *api.OverviewQueue) string { return numberText(value(q)) }}
}

func rateColumn(title string, count func(*api.OverviewCounts) uint64) column {
	value := func(q *api.OverviewQueue) float64 { return float64(count(&q.LastMinute)) / 60 }
	return column{title, value, func(q *api.OverviewQueue) string {
		if !q.Counted {
			return "?"
		}
		return rateText(value(q))
	}}
}

func timeColumn(title string, quantile func(*api.OverviewTotals) *float64) column {
	return column{title, func(q *api.OverviewQueue) float64 {
		if p := quantile(&q.Totals); p != nil {
			return *p
		}
		return -1
	}, func(q *api.OverviewQueue) string {
		if !q.Counted {
			return "?"
		}
		return quantileText(quantile(&q.Totals))
	}}
}

// numberText returns a number in at most five characters.
func numberText(n float64) string {
	for _, unit := range []string{"", "k", "M", "G"} {
		switch {
		case n < 9999.5 && unit == "":
			return fmt.Sprintf("%.0f", n)
		case n < 99.95 && unit != "":
			return fmt.Sprintf("%.1f%s", n, unit)
		case n < 999.5 && unit != "":
			return fmt.Sprintf("%.0f%s", n, unit)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.0fT", n)
}

// rateText returns a rate.
func rateText(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 9.995:
		return fmt.Sprintf("%.2f", n)
	case n < 99.95:
		return fmt.Sprintf("%.1f", n)
	}
	return numberText(n)
}

// quantileText returns a time in milliseconds, "-" for none.
func quantileText(p *float64) string {
	if p == nil {
		return "-"
	}
	return timeText(*p)
}

// timeText returns a time in milliseconds in at most six characters.
func timeText(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case ms < 9.95:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0fms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}
