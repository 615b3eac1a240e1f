package wallclock

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMain also is the process that [TestSet] sets the clock of: it answers each line that it reads
// with the time, and how long it is since its start.
func TestMain(m *testing.M) {
	if os.Getenv("WALLCLOCK_CHILD") == "" {
		os.Exit(m.Run())
	}
	started := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		now := time.Now()
		os.Stdout.WriteString(strconv.FormatInt(now.UnixMilli(), 10) + " " + strconv.FormatInt(now.Sub(started).Milliseconds(), 10) + "\n")
	}
}

func TestSet(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "WALLCLOCK_CHILD=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	answers := bufio.NewReader(out)
	ask := func() (wall time.Time, running time.Duration) {
		t.Helper()
		if _, err := io.WriteString(in, "now\n"); err != nil {
			t.Fatal(err)
		}
		line, err := answers.ReadString('\n')
		wallText, runningText, _ := strings.Cut(strings.TrimSpace(line), " ")
		ms, errWall := strconv.ParseInt(wallText, 10, 64)
		since, errRunning := strconv.ParseInt(runningText, 10, 64)
		if err := errors.Join(err, errWall, errRunning); err != nil {
			t.Fatal(err)
		}
		return time.UnixMilli(ms), time.Duration(since) * time.Millisecond
	}
	started := time.Now()
	clock, err := Of(cmd.Process.Pid)
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer clock.Close()
	for _, ahead := range []time.Duration{0, 2 * time.Hour, -time.Hour, 0} {
		if err := clock.Set(ahead); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		wall, running := ask()
		if off := wall.Sub(before) - ahead; off < -time.Millisecond || off > time.Since(before) {
			t.Errorf("a clock that was set by %s shows %s at %s", ahead, wall, before)
		}
		if running < 0 || running > time.Since(started)+time.Second {
			t.Errorf("after the clock was set by %s, the process runs for %s, since %s", ahead, running, started)
		}
	}
}
