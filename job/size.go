package job

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// sizeUnits are the units of sizes, ascending.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}

// ParseSize returns the number of bytes that text denotes: a whole number of bytes, or a
// number with a unit, such as "1GiB" or "1.5 GiB". ok is false for any other text.
func ParseSize(text string) (bytes int64, ok bool) {
	for _, unit := range sizeUnits {
		if number, hasUnit := strings.CutSuffix(text, unit.suffix); hasUnit {
			n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			n *= float64(unit.bytes)
			return int64(n), err == nil && math.Abs(n) < math.MaxInt64
		}
	}
	bytes, err := strconv.ParseInt(text, 10, 64)
	return bytes, err == nil
}

// FormatSize returns a number of bytes in the largest unit that it reaches, rounded down to
// one decimal, such as "1.5 GiB".
func FormatSize(bytes int64) string {
	for i := len(sizeUnits) - 1; i >= 0; i-- {
		if unit := sizeUnits[i]; bytes >= unit.bytes {
			whole, tenths := bytes/unit.bytes, bytes%unit.bytes*10/unit.bytes
			if tenths == 0 {
				return fmt.Sprintf("%d %s", whole, unit.suffix)
			}
			return fmt.Sprintf("%d.%d %s", whole, tenths, unit.suffix)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}
