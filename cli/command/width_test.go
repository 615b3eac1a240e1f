package command

import "testing"

func TestFitColumns(t *testing.T) {
	const id = "0198c3f2-7d54-7c1e-9a55-3f9d2f4c8a10"
	for _, tt := range []struct {
		name, text string
		width      int
		want       string
	}{
		{"no terminal", "JOB\tQUEUE\tERROR\na\tb\tabcdefghijkl\n", 0, "JOB\tQUEUE\tERROR\na\tb\tabcdefghijkl\n"},
		{"fits", "JOB\tQUEUE\tERROR\na\tb\tabcdefghijkl\n", 24, "JOB\tQUEUE\tERROR\na\tb\tabcdefghijkl\n"},
		{"widest first", "J\tQUEUE\tERROR\na\tb\tabcdefghijkl\n", 20, "J\tQUEUE\tERROR\na\tb\tabcdefghi…\n"},
		{"equally", "J\tK\tL\na\tabcdefghijkl\tabcdefghijkl\n", 25, "J\tK\tL\na\tabcdefghi…\tabcdefghi…\n"},
		{"no less than 8", "J\tK\tL\na\tb\tabcdefghijkl\n", 3, "J\tK\tL\na\tb\tabcdefg…\n"},
		{"first column and ids stay", "LETTER-OF-A-LONG-NAME\tJOB\tE\n1\t" + id + "\tabcdefghijkl\n", 30, "LETTER-OF-A-LONG-NAME\tJOB\tE\n1\t" + id + "\tabcdefg…\n"},
		{"two cells stay", "error\tabcdefghijklmnopqrstuvwxyz\n", 10, "error\tabcdefghijklmnopqrstuvwxyz\n"},
		{"tables apart", "a\tb\tabcdefghijkl\nnote\na\tb\tab\n", 14, "a\tb\tabcdefg…\nnote\na\tb\tab\n"},
		{"without a last break", "a\tb\tabcdefghijkl", 14, "a\tb\tabcdefg…"},
	} {
		if got := fitColumns(tt.text, tt.width); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
