// Package disk gives a node a disk of its own that can be broken.
//
// A [Disk] is an ext4 file system in a sparse file, mounted through a loop
// device. What may happen to it:
//
//	Cut, Restore   the power goes, and comes back: what no fsync had settled is gone
//	Freeze         it hangs: writes wait in the kernel until it is thawed
//	Fill           it is full, but for some bytes
//	ReadOnly       it takes no more writes, as after an error of the device
//
// And to files on any disk: [Flip] changes a byte in place, [Cutoff] takes
// bytes off the end, [Replace] puts an older copy of a directory back.
//
// A loss of power is real as far as the file system goes: the kernel's
// EXT4_IOC_SHUTDOWN drops everything that was not written, also the journal's
// commit under way, and mounting replays the journal. The program that writes
// should be killed at the same moment.
//
// A frozen disk holds its writers in the kernel, where no signal reaches them.
// So it is thawed by whoever froze it, when a time limit has passed, and when
// the drill itself has died: a process of its own sees to the last two.
//
// All of it needs root and loop devices; [Missing] says what is not there.
package disk
