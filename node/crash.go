package node

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

// Files in a data directory with the trace of a crash: of the running process, and of the
// last one that crashed.
const (
	crashFile     = "crash"
	lastCrashFile = "crash.last"
)

// recordCrashes logs the crash of the last process that ran with a data directory, and has
// the Go runtime write the trace of one of this process into a file there, besides stderr.
// The runtime does so for a panic of any goroutine, also of a library, and for fatal errors.
// If several nodes run in this process, the trace is in the directory of the latest.
func recordCrashes(dir string, log *slog.Logger) error {
	path, last := filepath.Join(dir, crashFile), filepath.Join(dir, lastCrashFile)
	if reason, err := firstLine(path); err != nil {
		return err
	} else if reason != "" {
		if err := os.Rename(path, last); err != nil {
			return err
		}
		log.Error("node crashed when it last ran", "err", reason, "trace", last)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, durable.FileMode)
	if err != nil {
		return err
	}
	return errors.Join(debug.SetCrashOutput(file, debug.CrashOptions{}), file.Close()) // the runtime has a copy
}

// firstLine returns the first line of a file, "" if it is empty or does not exist.
func firstLine(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return "", err
	}
	defer file.Close()
	line, _, err := bufio.NewReader(file).ReadLine() // up to 4 KiB
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimSpace(string(line)), err
}
