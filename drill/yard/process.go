package yard

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Process is one started program. Its output goes to a file.
type Process struct {
	Name string
	Log  string // file of its output

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; valid after done
	once sync.Once     // for Term
}

// StartProcess starts a program with env added to our environment. It stands
// in a process group of its own, so that a Ctrl-C reaches it through us only,
// and dies with us whatever happens to us.
func StartProcess(name, logFile string, env []string, program string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: logFile, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process, for which Stop and Kill wait
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Kill is SIGKILL, and returns when the process is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error means that it is gone already
	<-p.done
}

// Term asks the process to end, once only: asked twice, it would end at once
// and leave its work as it is.
func (p *Process) Term() {
	p.once.Do(func() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }) // as above
}

// Stop asks the process to end, unless it was asked, and kills it when that
// takes longer than within.
func (p *Process) Stop(within time.Duration) {
	p.Term()
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
		p.Kill()
	}
}

// Ended is nil while the process runs, and then says how it ended and what it
// said last.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%v): %s", p.Name, p.err, p.LastWords())
	default:
		return nil
	}
}

// LastWords is the end of the process's output.
func (p *Process) LastWords() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	if cut := len(text) - 600; cut > 0 {
		text = text[cut:]
	}
	return filepath.Base(p.Log) + " ends with: " + string(text)
}

// clockTick is the kernel's unit in /proc/<pid>/stat, the same on every Linux.
const clockTick = 10 * time.Millisecond

// CPU is the processor time the process has used; 0 where the kernel does not
// tell.
func (p *Process) CPU() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// The name may hold spaces; what follows it begins with field 3.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * clockTick
}

// Memory is what the process has in the machine's memory, in bytes (VmRSS); 0
// where the kernel does not tell.
func (p *Process) Memory() int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("\nVmRSS:"))
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, _ := strconv.ParseInt(string(fields[0]), 10, 64)
	return kib << 10
}

// Descriptors is how many files and sockets the process has open; 0 where the
// kernel does not tell.
func (p *Process) Descriptors() int {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	return len(open)
}

// MachineCPU is the processor time that everything on this machine has used,
// with the kernel's own; 0 where the kernel does not tell.
func MachineCPU() (sum time.Duration) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	for i, field := range bytes.Fields(line) {
		// cpu user nice system idle iowait irq softirq steal, then guests,
		// which user has already.
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		ticks, _ := strconv.ParseInt(string(field), 10, 64)
		sum += time.Duration(ticks) * clockTick
	}
	return sum
}
