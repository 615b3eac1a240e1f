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

// relay is a host's cable made of two of its ends: what comes out of one, this
// program puts into the other, later if it is asked to. The kernel of a machine
// without netem cannot delay anything.
type relay struct {
	near, far *os.File // tap devices: at the host, at the switch
	done      sync.WaitGroup

	mu      sync.Mutex
	least   time.Duration // of the delay, one way
	most    time.Duration
	closing bool
}

// frameSize holds the largest frame of an ethernet.
const frameSize = 2048

// newRelay makes the devices eth0 on the host and port at the switch, and
// carries frames between them until it is closed.
func newRelay(host, sw, port string) (*relay, error) {
	r := &relay{}
	var err error
	if r.near, err = tap(host, "eth0"); err != nil {
		return nil, err
	}
	if r.far, err = tap(sw, port); err != nil {
		r.near.Close()
		return nil, err
	}
	r.done.Go(func() { r.carry(r.near, r.far) })
	r.done.Go(func() { r.carry(r.far, r.near) })
	return r, nil
}

func (r *relay) close() {
	r.near.Close()
	r.far.Close()
	r.done.Wait()
}

func (r *relay) slow(least, most time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.least, r.most = least, most
}

func (r *relay) delay() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most <= r.least {
		return r.least
	}
	return r.least + rand.N(r.most-r.least)
}

// carry takes frames from one device to another, in their order, until either
// is closed. What does not fit into the queue is lost, as on any cable.
func (r *relay) carry(from, to *os.File) {
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
			_, _ = to.Write(f.data) // a device that is down loses it
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

// tap makes a tap device in a namespace; it is gone when the file is closed.
func tap(space, name string) (file *os.File, err error) {
	failed := inside(space, func() error {
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
			return fmt.Errorf("make the device %s in %s: %w", name, space, err)
		}
		file = os.NewFile(uintptr(fd), name) // non-blocking: the runtime polls it
		return nil
	})
	return file, failed
}

// inside runs f on a thread that is in a namespace. What f starts or opens
// there stays there.
func inside(space string, f func() error) error {
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
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays locked and ends with its goroutine: nobody else must
		// find himself on that host.
		return fmt.Errorf("leave the network %s: %w", space, back)
	}
	runtime.UnlockOSThread()
	return err
}
