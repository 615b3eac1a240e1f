// Package wallclock sets the wall clock of one running process, for tests of what a wrong clock
// does. The program needs no change, and other processes keep the right time: the function by which
// the process reads clocks, which the kernel maps into it (the vDSO), is replaced in this process
// alone. Its monotonic clock stays as it is.
package wallclock

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// ErrUnsupported is returned on machines where the clock of a process cannot be set: other
// systems than Linux on amd64, and those that do not let a process write to the memory of its children.
var ErrUnsupported = errors.New("the wall clock of a process cannot be set on this machine")

// Clock is the wall clock of one process. It is valid until the process ends.
type Clock struct {
	memory *os.File // of the process
	offset int64    // address of the seconds that are added
}

// reader is the replacement of clock_gettime. It asks the kernel, and adds the seconds that follow its
// code to CLOCK_REALTIME, which has the number 0.
var reader = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, 228 (clock_gettime)
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x0a, // jne to ret
	0x48, 0x8b, 0x0d, 0x04, 0x00, 0x00, 0x00, // mov rcx, the seconds behind ret
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

// Of returns the wall clock of a running process, a child of this one, which still shows the right
// time. For a process that is to be wrong from its start, call it right after the start: a program
// in Go takes some milliseconds before it reads a clock for anything else than its garbage collector.
func Of(pid int) (c *Clock, err error) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil, ErrUnsupported
	}
	image, base, err := vdso(pid)
	for tries := 0; err == nil && image == nil && tries < 1000; tries++ { // the kernel has not started the program yet
		time.Sleep(time.Millisecond)
		image, base, err = vdso(pid)
	}
	if err == nil && image == nil {
		err = fmt.Errorf("%w: process %d has no vDSO", ErrUnsupported, pid)
	}
	if err != nil {
		return nil, err
	}
	read, spare, err := functions(image)
	if err != nil {
		return nil, err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(ErrUnsupported, err)
	}
	// The process is stopped, so that no thread runs code that is half written. A thread that has
	// entered the old function may leave it.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)) }()
	jump := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(int32(spare-read-5))) // relative to the next instruction
	_, err = memory.WriteAt(append(bytes.Clone(reader), make([]byte, 8)...), base+spare)
	if err == nil {
		_, err = memory.WriteAt(jump, base+read)
	}
	if err != nil {
		memory.Close()
		return nil, errors.Join(ErrUnsupported, err)
	}
	return &Clock{memory, base + spare + int64(len(reader))}, nil
}

// Set makes the wall clock of the process differ from this machine's, by whole seconds. A negative
// difference is behind.
func (c *Clock) Set(ahead time.Duration) error {
	_, err := c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(ahead/time.Second)), c.offset)
	return err
}

// Close releases the clock, which stays as it was set.
func (c *Clock) Close() error { return c.memory.Close() }

// vdso returns the vDSO of a process, and its address; nil if it has none yet.
func vdso(pid int) (image []byte, base int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, 0, errors.Join(ErrUnsupported, err)
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(line, "[vdso]\n") {
			continue
		}
		var end int64
		if _, err := fmt.Sscanf(line, "%x-%x", &base, &end); err != nil {
			return nil, 0, fmt.Errorf("malformed line of maps %q: %w", line, err)
		}
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return nil, 0, errors.Join(ErrUnsupported, err)
		}
		defer memory.Close()
		image = make([]byte, end-base)
		_, err = memory.ReadAt(image, base)
		return image, base, err
	}
	return nil, 0, nil
}

// functions returns where clock_gettime is in a vDSO, and where the replacement may be: instead of
// gettimeofday, which programs in Go do not call.
func functions(image []byte) (read, spare int64, err error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, 0, err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, 0, err
	}
	for _, s := range symbols {
		switch {
		case s.Name == "__vdso_clock_gettime":
			read = int64(s.Value)
		case s.Name == "__vdso_gettimeofday" && s.Size >= uint64(len(reader)+8):
			spare = int64(s.Value)
		}
	}
	if read == 0 || spare == 0 {
		return 0, 0, fmt.Errorf("%w: its vDSO has other functions", ErrUnsupported)
	}
	return read, spare, nil
}
