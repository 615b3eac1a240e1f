package job

import "testing"

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1234": 1234, "-1": -1, "1KiB": 1 << 10, "1.5 GiB": 3 << 29, "0.25MiB": 1 << 18, "-2TiB": -2 << 40,
	} {
		if got, ok := ParseSize(text); !ok || got != want {
			t.Errorf("%q: %d, %t; want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "GiB", "1GB", "1.5", "many", "NaNGiB", "infGiB", "1e300TiB", "9000000TiB"} {
		if got, ok := ParseSize(text); ok {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1 << 10: "1 KiB", 4<<20 - 1: "3.9 MiB", 3 << 29: "1.5 GiB", 100 << 30: "100 GiB", MaxRetentionBytes: "1024 TiB",
	} {
		if got := FormatSize(bytes); got != want {
			t.Errorf("%d: %q, want %q", bytes, got, want)
		}
	}
}
