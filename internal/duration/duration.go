// Package duration reads durations as users write them: on the command line, in
// configuration files, and in the headers and query parameters of requests.
package duration

import (
	"fmt"
	"math"
	"strings"
	"time"
)

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

// syntaxError returns the error for a text that is not a duration.
func syntaxError(text string) error {
	if text != "" && strings.Trim(text, "0123456789.+-") == "" {
		return fmt.Errorf("%q has no unit; write it like 30s, 5m, 1h30m or 1d", text)
	}
	return fmt.Errorf("%q is not a duration; write it like 30s, 5m, 1h30m or 1d", text)
}
