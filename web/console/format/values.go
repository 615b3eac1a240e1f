package format

import (
	"fmt"
	"html/template"
	"regexp"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Deref returns the value of a pointer, or "" for nil.
func Deref(v any) any {
	switch p := v.(type) {
	case *int64:
		if p != nil {
			return *p
		}
	case *uint32:
		if p != nil {
			return *p
		}
	case *uint8:
		if p != nil {
			return *p
		}
	case *int:
		if p != nil {
			return *p
		}
	}
	return ""
}

// Int returns a number of any type of whole numbers.
func Int(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case int64:
		return n
	case uint64:
		return int64(min(n, 1<<62))
	case uint32:
		return int64(n)
	case uint8:
		return int64(n)
	case *int64:
		if n != nil {
			return *n
		}
	}
	return 0
}

// Count returns a number of any type of whole numbers as a text.
func Count(n any) string { return countText(Int(n)) }

// Plural returns the noun of a number of any type of whole numbers.
func Plural(n any, one, many string) string {
	if Int(n) == 1 {
		return one
	}
	return many
}

// Time returns a time as HTML: in UTC, which scripts replace by the viewer's zone, or
// by how long ago it is. It returns a dash for no time.
func Time(at any, ago bool) template.HTML {
	var t time.Time
	switch v := at.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v != nil {
			t = *v
		}
	}
	if t.IsZero() {
		return `<span class="none">–</span>`
	}
	t = t.UTC()
	kind := ""
	if ago {
		kind = ` data-ago`
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s UTC"%s>%s UTC</time>`, //nolint:gosec // digits only
		t.Format(time.RFC3339Nano), t.Format("2006-01-02 15:04:05.000"), kind, t.Format("2006-01-02 15:04:05")))
}

// InZone returns a time such as "2026-03-29T03:00:00+02:00" as people read it, in the zone that it is written in and with
// that zone's offset. It returns a text that is not a time as [Name] does.
func InZone(text string) template.HTML {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return Name(text)
	}
	return template.HTML(at.Format("Mon 2006-01-02 15:04:05 <span class=\"zone dim\">UTC-07:00</span>")) //nolint:gosec // digits and letters only
}

// instant matches a time in UTC as texts of the API have it, such as 2026-11-29T07:10:02.291Z.
var instant = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)

// Verdict returns a text of an explanation as [Text] does, in which times are elements that scripts
// show in the zone of the viewer, as [Time] writes them.
func Verdict(text string) template.HTML { return times(Text(text, CutBlock, true)) }

// Reason returns a text as [Line] does, with times as [Verdict] has them.
func Reason(text string) template.HTML { return times(Line(text)) }

// times returns HTML with elements in place of the times in its texts.
func times(html template.HTML) template.HTML {
	return template.HTML(instant.ReplaceAllStringFunc(string(html), func(found string) string {
		at, err := time.Parse(time.RFC3339Nano, found)
		if err != nil {
			return found
		}
		return string(Time(at, false))
	})) //nolint:gosec // only times are replaced
}

// Duration returns a duration with the digits that people need.
func Duration(d time.Duration) string {
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return duration.Format(d)
}

// Setting returns the value of a retention setting for people.
func Setting(s api.RetentionSetting) string {
	switch {
	case s.Value == 0 && s.Unit == "bytes":
		return "as the stream was created"
	case s.Value == 0:
		return "no bound"
	case s.Unit == "ms":
		return Duration(time.Duration(s.Value) * time.Millisecond)
	case s.Unit == "bytes":
		return Bytes(s.Value)
	}
	return countText(s.Value)
}

// Bytes returns a size for people.
func Bytes(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// countText returns a number with thin spaces between its thousands.
func countText(n int64) string {
	digits := fmt.Sprint(n)
	var b strings.Builder
	for i, d := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && digits[i-1] != '-' {
			b.WriteRune('\u202f')
		}
		b.WriteRune(d)
	}
	return b.String()
}
