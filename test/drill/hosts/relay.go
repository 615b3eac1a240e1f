package hosts

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// relay is a host's link made of two tap devices: this process reads the frames of
// one and writes them to the other, delayed if requested. Unlike netem, it needs
// no kernel module.
type relay struct {
	near, far *os.File // tap devices at the host and at the switch
	done      sync.WaitGroup

	mu       sync.Mutex
	minDelay time.Duration // one way
	maxDelay time.Duration
	closing  bool
}

// frameSize is enough for the largest Ethernet frame, in bytes.
const frameSize = 2048

// newRelay creates the devices eth0 at the host and port at the switch, and
// forwards frames between them until it is closed.
func newRelay(host, sw, port string) (*relay, error) {
	r := &relay{}
	var err error
	if r.near, err = openTap(host, "eth0"); err != nil {
		return nil, err
	}
	if r.far, err = openTap(sw, port); err != nil {
		r.near.Close()
		return nil, err
	}
	r.done.Go(func() { r.forward(r.near, r.far) })
	r.done.Go(func() { r.forward(r.far, r.near) })
	return r, nil
}

func (r *relay) close() {
	r.near.Close()
	r.far.Close()
	r.done.Wait()
}

func (r *relay) setDelay(minimum, maximum time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.minDelay, r.maxDelay = minimum, maximum
}

// delay returns a random delay between the limits.
func (r *relay) delay() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.maxDelay <= r.minDelay {
		return r.minDelay
	}
	return r.minDelay + rand.N(r.maxDelay-r.minDelay)
}

// forward copies frames from one device to the other, in order, until from is
// closed. Frames that do not fit into the queue are dropped, as by a real switch.
func (r *relay) forward(from, to *os.File) {
	type frame struct {
		due  time.Time
		data []byte
	}
	queue := make(chan frame, 4096)
	r.done.Go(func() {
		for f := range queue {
			if wait := time.Until(f.due); wait > 0 {
				time.Sleep(wait)
			}
			_, _ = to.Write(f.data) // fails while the device is down: the frame is lost
		}
	})
	defer close(queue)
	buffer := make([]byte, frameSize)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		select {
		case queue <- frame{time.Now().Add(r.delay()), append([]byte(nil), buffer[:n]...)}:
		default:
		}
	}
}

// openTap creates a tap device in a namespace. Closing the file removes it.
func openTap(space, name string) (file *os.File, err error) {
	failed := inNamespace(space, func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		request, err := unix.NewIfreq(name)
		if err == nil {
			request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("create the device %s in %s: %w", name, space, err)
		}
		file = os.NewFile(uintptr(fd), name) // non-blocking: the runtime polls it
		return nil
	})
	return file, failed
}

// inNamespace runs f on a thread in the network namespace. Processes started and
// devices opened by f stay in it.
func inNamespace(space string, f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find this network: %w", err)
	}
	defer home.Close()
	there, err := os.Open("/var/run/netns/" + space)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("find the network %s: %w", space, err)
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network %s: %w", space, err)
	}
	err = f()
	if leaveErr := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); leaveErr != nil {
		// Keep the thread locked, so that it ends with its goroutine and no
		// other goroutine runs in this namespace.
		return fmt.Errorf("leave the network %s: %w", space, leaveErr)
	}
	runtime.UnlockOSThread()
	return err
}
