// Package disk provides file systems with injectable faults for a node's data.
//
// A [Disk] is an ext4 file system in a sparse file, mounted through a loop
// device. Its faults:
//
//	Cut, Restore   loss of power, and its return: data that was not synced is gone
//	Freeze         the disk hangs: writes block in the kernel until the thaw
//	Fill           the disk is full, except for some bytes
//	ReadOnly       writes fail, as after an I/O error of the device
//
// Faults of files on any disk: [Flip] changes bits in place, [Truncate] removes
// bytes at the end, [Replace] replaces a directory with a copy of another.
//
// The loss of power is real at the level of the file system: the kernel's
// EXT4_IOC_SHUTDOWN drops all data that was not written, including the running
// journal transaction, and mounting replays the journal. Kill the program that
// writes at the same time.
//
// A frozen disk blocks its writers in the kernel, where no signal reaches them. It
// is therefore thawed by its caller, after a time limit, or when the calling
// process dies; a watchdog process does the latter two.
//
// The package needs root and loop devices; [Missing] reports what is missing.
package disk
