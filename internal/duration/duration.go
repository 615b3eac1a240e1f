// Package duration reads and writes durations as users do: on the command line, in
// configuration files, and in the headers and query parameters of requests.
package duration

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
)

// Max is the longest duration of a setting.
const Max = 3650 * day

const day = 24 * time.Hour

// Parse returns the duration that text denotes: like [time.ParseDuration], except
// that a number of days may come first, as in "30d" and "1d12h". A day is 24 hours.
func Parse(text string) (time.Duration, error) {
	days, rest, hasDays := strings.Cut(text, "d")
	if !hasDays {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, syntaxError(text)
		}
		return d, nil
	}
	sign, number := "", days
	if number != "" && (number[0] == '-' || number[0] == '+') {
		sign, number = number[:1], number[1:]
	}
	if strings.Trim(number, "0123456789.") != "" || rest != "" && (rest[0] == '-' || rest[0] == '+') {
		return 0, syntaxError(text)
	}
	inHours, err := time.ParseDuration(sign + number + "h")
	if err != nil || inHours > math.MaxInt64/24 || inHours < math.MinInt64/24 {
		return 0, syntaxError(text)
	}
	d := inHours * 24
	if rest == "" {
		return d, nil
	}
	below, err := time.ParseDuration(sign + rest)
	if sum := d + below; err == nil && (sum < d) == (below < 0) {
		return sum, nil
	}
	return 0, syntaxError(text)
}

// Format returns the shortest text that [Parse] reads as d, with days: "30d" or "1d12h".
func Format(d time.Duration) string {
	if d < day {
		return trimZeros(d.String())
	}
	days := fmt.Sprintf("%dd", d/day)
	if rest := d % day; rest > 0 {
		return days + trimZeros(rest.String())
	}
	return days
}

// trimZeros returns the text of a [time.Duration] without minutes and seconds that are 0
// after a larger unit.
func trimZeros(text string) string {
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// wellFormed matches the texts that denote a duration, however long it is.
var wellFormed = regexp.MustCompile(`^[-+]?(` + number + `d)?(` + number + `(ns|us|µs|μs|ms|s|m|h))*$`)

const number = `([0-9]+\.?[0-9]*|\.[0-9]+)`

// syntaxError returns the error for a text that Parse cannot read.
func syntaxError(text string) error {
	const example = "write it like 30s, 5m, 1h30m or 1d"
	switch {
	case text != "" && strings.Trim(text, "0123456789.+-") == "":
		return fmt.Errorf("%q has no unit; %s", text, example)
	case strings.ContainsAny(text, "0123456789") && wellFormed.MatchString(text):
		return fmt.Errorf("%q is too long; the longest duration is %s", text, Format(Max))
	}
	return fmt.Errorf("%q is not a duration; %s", text, example)
}
