package duration

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0": 0, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "-5m": -5 * time.Minute,
		"1d": day, "0d": 0, "1.5d": 36 * time.Hour, "1d12h": 36 * time.Hour, "365d": 365 * day, "2d0.5s": 2*day + 500*time.Millisecond,
		"-1d12h": -36 * time.Hour, "+1d": day, "106751d": 106751 * day,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %s, %v; want %s", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"300": `"300" has no unit`, "-1.5": "has no unit", "": "is not a duration", "d": "is not a duration", "1d5": "is not a duration",
		"1h1d": "is not a duration", "1d1d": "is not a duration", "1d-1h": "is not a duration", "1 d": "is not a duration",
		"1day": "is not a duration", "NaNd": "is not a duration", "1e3d": "is not a duration", "one": "is not a duration",
		"106752d": `"106752d" is too long; the longest duration is 3650d`, "-106752d": "is too long", "106751d24h": "is too long",
		"9999999999999d": "is too long", "99999999h": "is too long", "1d99999999h": "is too long",
	} {
		if got, err := Parse(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%q) = %s, %v; want an error with %q", text, got, err, says)
		}
	}
}

func TestFormat(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		0: "0s", 90 * time.Second: "1m30s", time.Hour: "1h", 90 * time.Minute: "1h30m", time.Hour + time.Second: "1h0m1s", 10 * time.Minute: "10m",
		30 * day: "30d", 36 * time.Hour: "1d12h", day + time.Minute: "1d1m", 1500 * time.Millisecond: "1.5s", -time.Hour: "-1h", Max: "3650d",
	} {
		if got := Format(d); got != want {
			t.Errorf("Format(%s) = %q, want %q", d, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("1d12h", "36h")
	f.Fuzz(func(t *testing.T, text, plain string) {
		// What time.ParseDuration reads has the same meaning here.
		if want, err := time.ParseDuration(plain); err == nil {
			if got, err := Parse(plain); err != nil || got != want {
				t.Errorf("Parse(%q) = %s, %v; want %s", plain, got, err, want)
			}
		}
		d, err := Parse(text)
		if err != nil {
			return
		}
		for _, written := range []string{d.String(), Format(d)} {
			if again, err := Parse(written); err != nil || again != d {
				t.Errorf("Parse(%q) = %s; %q is read as %s, %v", text, d, written, again, err)
			}
		}
	})
}
