package statedir

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// store is a directory under its lock: what its files said, and how a new
// state is put in their place.
type store struct {
	dir    string
	lock   *os.File
	now    time.Time                // of this command
	killed func(before string) bool // tests: whether the process dies before a step

	disk    digests // of the views that are there
	stale   bool    // views are not what the truth says they should be
	mailbox bool    // mailbox.json is to be made anew; else it stays as it is
}

func (d *store) path(name string) string { return filepath.Join(d.dir, name) }

// close lets the lock go.
func (d *store) close() { d.lock.Close() }

// load reads and checks the whole directory. The state is nil if there is none.
func (d *store) load() (*state, error) {
	s, should, were, err := d.readTruth()
	if err != nil {
		return nil, err
	}
	d.disk = make(digests)
	contents := make(map[string][]byte)
	for _, view := range viewFiles {
		b, err := os.ReadFile(d.path(view.name))
		if isAbsent(err) {
			d.stale, d.mailbox = true, d.mailbox || view.name == mailboxFile
			continue
		}
		if err != nil {
			return nil, ioError(err)
		}
		contents[view.name], d.disk[view.name] = b, digest(b)
		if view.name != mailboxFile { // which is not ours to make
			if d.disk[view.name] == should[view.name] {
				continue
			}
			d.stale = true
			if d.disk[view.name] == were[view.name] { // a commit was cut off
				continue
			}
		}
		if err := view.shape(b); err != nil {
			return nil, d.damaged(view.name, err, s != nil)
		}
		if s != nil && view.name == eventsFile {
			return nil, d.damaged(eventsFile, errForeign, true)
		}
	}
	if s != nil {
		return s, nil
	}
	return d.adopt(contents)
}

// errForeign is about events.json alone: the program that wrote it counts by
// it, so what it says must not get lost.
var errForeign = errors.New("another program has changed it since the last command")

func (d *store) readTruth() (s *state, should, were digests, err error) {
	file, err := os.ReadFile(d.path(truthFile))
	if isAbsent(err) {
		return nil, nil, nil, nil
	}
	if err != nil {
		return nil, nil, nil, ioError(err)
	}
	s, should, were, err = unseal(file)
	if errors.Is(err, errNewer) {
		return nil, nil, nil, &DamagedError{File: d.path(truthFile), Why: err, Do: "run that release"}
	}
	if err != nil {
		return nil, nil, nil, &DamagedError{File: d.path(truthFile), Why: err, Do: fmt.Sprintf(
			"put back a good copy, or move it away to go on from %s, or start anew with 'yardmaster init %s'", eventsFile, d.dir)}
	}
	return s, should, were, nil
}

func (d *store) damaged(name string, why error, truth bool) error {
	do := fmt.Sprintf("put back a good copy, or start anew with 'yardmaster init %s'", d.dir)
	switch {
	case why == errForeign:
		do = fmt.Sprintf("move it away to go on from %s, or move that away to go on from %s", truthFile, eventsFile)
	case truth || name != eventsFile:
		do = "put back a good copy, or move it away"
	}
	return &DamagedError{File: d.path(name), Why: why, Do: do}
}

// errKilled stands for the death of the process, in tests.
var errKilled = errors.New("killed")

// step is passed before anything is changed on disk.
func (d *store) step(name string) error {
	if d.killed != nil && d.killed(name) {
		return errKilled
	}
	return nil
}

// commit puts a new state in the place of the old one. Until the truth is
// renamed nothing has happened; from then on everything has, and what is not
// renamed yet will be by the next command.
func (d *store) commit(s *state) error {
	files, err := s.views(d.now)
	if err != nil {
		return err
	}
	should := make(digests)
	for name, b := range files {
		if should[name] = digest(b); should[name] == d.disk[name] {
			delete(files, name)
		}
	}
	if d.mailbox {
		files[mailboxFile] = []byte(noMailbox)
	}
	views := maps.Clone(files)
	if files[truthFile], err = s.seal(should, d.disk); err != nil {
		return err
	}
	if err := d.writeAside(files); err != nil {
		d.clear(files)
		return ioError(err)
	}
	if err := d.bring(truthFile); err != nil {
		return ioError(err)
	}
	if err := d.step("sync directory"); err != nil {
		return err
	}
	if err := syncDir(d.dir); err != nil {
		return ioError(err)
	}
	for _, view := range viewFiles {
		if _, changed := views[view.name]; !changed {
			continue
		}
		if err := d.bring(view.name); err != nil {
			return fmt.Errorf("io error: %w; the command itself is done, and the next one makes the file anew", err)
		}
	}
	return nil
}

// aside is where a file is written before it is brought to its place. Only the
// holder of the lock writes there, so one name will do, and what a killed
// process left is overwritten.
func (d *store) aside(name string) string { return d.path("." + name + ".new") }

// writeAside writes all files and waits until they are on disk. They are synced
// at once: the disk then writes its journal once for all.
func (d *store) writeAside(files map[string][]byte) error {
	var writes sync.WaitGroup
	errs := make([]error, 0, len(files))
	var mu sync.Mutex
	for name, content := range files {
		if err := d.step("write " + name); err != nil {
			writes.Wait()
			return err
		}
		writes.Go(func() {
			err := writeSynced(d.aside(name), content)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	writes.Wait()
	return errors.Join(errs...)
}

// clear removes what was written aside in vain: where the disk is full, the next
// command needs the room.
func (d *store) clear(files map[string][]byte) {
	for name := range files {
		if d.step("clear "+name) == nil {
			_ = os.Remove(d.aside(name)) // else it stays, and is overwritten some day
		}
	}
}

func writeSynced(name string, content []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// bring renames a file to its place.
func (d *store) bring(name string) error {
	if err := d.step("rename " + name); err != nil {
		return err
	}
	return os.Rename(d.aside(name), d.path(name))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
