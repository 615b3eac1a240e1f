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

// store is a directory whose lock is held.
type store struct {
	dir         string
	lock        *os.File
	now         time.Time              // of this command
	crashBefore func(step string) bool // for tests: whether to stop before a step

	onDisk         digests // of the views on disk; set by load
	viewsStale     bool    // a view differs from the state file; set by load
	rewriteMailbox bool    // commit replaces mailbox.json by an empty one
}

func (d *store) path(name string) string { return filepath.Join(d.dir, name) }

// close releases the lock.
func (d *store) close() { d.lock.Close() }

// load reads and checks all files. It returns nil if the directory has no state.
func (d *store) load() (*state, error) {
	s, want, previous, err := d.readStateFile()
	if err != nil {
		return nil, err
	}
	d.onDisk = make(digests)
	contents := make(map[string][]byte)
	for _, view := range viewFiles {
		b, err := os.ReadFile(d.path(view.name))
		if isNotExist(err) {
			d.viewsStale, d.rewriteMailbox = true, d.rewriteMailbox || view.name == mailboxFile
			continue
		}
		if err != nil {
			return nil, ioError(err)
		}
		contents[view.name], d.onDisk[view.name] = b, digest(b)
		if view.name != mailboxFile { // not derived from the state
			if d.onDisk[view.name] == want[view.name] {
				continue
			}
			d.viewsStale = true
			if d.onDisk[view.name] == previous[view.name] { // the last commit was interrupted
				continue
			}
		}
		if err := view.shape(b); err != nil {
			return nil, d.damaged(view.name, err, s != nil)
		}
		if s != nil && view.name == eventsFile {
			return nil, d.damaged(eventsFile, errChangedOutside, true)
		}
	}
	if s != nil {
		return s, nil
	}
	return d.importOriginal(contents)
}

// readStateFile reads and decodes the state file. If the file does not exist, all
// results are nil.
func (d *store) readStateFile() (s *state, want, previous digests, err error) {
	file, err := os.ReadFile(d.path(stateFile))
	if isNotExist(err) {
		return nil, nil, nil, nil
	}
	if err != nil {
		return nil, nil, nil, ioError(err)
	}
	s, want, previous, err = decodeState(file)
	if errors.Is(err, errNewerFormat) {
		return nil, nil, nil, &DamagedError{File: d.path(stateFile), Err: err, Remedy: "run that release"}
	}
	if err != nil {
		return nil, nil, nil, &DamagedError{File: d.path(stateFile), Err: err, Remedy: fmt.Sprintf(
			"restore it from a backup, or move it away to continue from %s, or start with an empty state by 'yardmaster init %s'", eventsFile, d.dir)}
	}
	return s, want, previous, nil
}

// damaged returns the error for a file with unexpected content. hasState is
// whether there is a state file.
func (d *store) damaged(name string, err error, hasState bool) error {
	remedy := fmt.Sprintf("restore it from a backup, or start with an empty state by 'yardmaster init %s'", d.dir)
	switch {
	case err == errChangedOutside:
		remedy = fmt.Sprintf("move it away to continue from %s, or move that away to continue from %s", stateFile, eventsFile)
	case hasState || name != eventsFile:
		remedy = "restore it from a backup, or move it away"
	}
	return &DamagedError{File: d.path(name), Err: err, Remedy: remedy}
}

// step is called before each change on disk. It returns an error if a test stops
// there.
func (d *store) step(name string) error {
	if d.crashBefore != nil && d.crashBefore(name) {
		return errCrashed
	}
	return nil
}

// commit replaces the state on disk by s. The rename of the state file commits
// it; views that are not renamed after that are rewritten by the next command.
func (d *store) commit(s *state) error {
	files, err := s.views(d.now)
	if err != nil {
		return err
	}
	want := make(digests)
	for name, b := range files {
		if want[name] = digest(b); want[name] == d.onDisk[name] {
			delete(files, name)
		}
	}
	if d.rewriteMailbox {
		files[mailboxFile] = []byte(emptyMailbox)
	}
	views := maps.Clone(files)
	if files[stateFile], err = s.encode(want, d.onDisk); err != nil {
		return err
	}
	if err := d.writeTemp(files); err != nil {
		d.removeTemp(files)
		return ioError(err)
	}
	if err := d.install(stateFile); err != nil {
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
		if err := d.install(view.name); err != nil {
			return fmt.Errorf("io error: %w; the command was executed, and the next one rewrites the file", err)
		}
	}
	return nil
}

// tempPath returns the temporary name of a file. One name is sufficient, because
// only the holder of the lock writes there; a file left by a killed process is
// overwritten.
func (d *store) tempPath(name string) string { return d.path("." + name + ".new") }

// writeTemp writes all files under their temporary names and syncs them to disk.
// It syncs them concurrently, so that the file system can commit its journal
// once for all of them.
func (d *store) writeTemp(files map[string][]byte) error {
	var writes sync.WaitGroup
	errs := make([]error, len(files))
	next := 0
	for name, content := range files {
		if err := d.step("write " + name); err != nil {
			writes.Wait()
			return err
		}
		err := &errs[next]
		next++
		writes.Go(func() { *err = writeSynced(d.tempPath(name), content) })
	}
	writes.Wait()
	return errors.Join(errs...)
}

// removeTemp removes temporary files after a failed write. If the disk is full,
// the next command needs the space.
func (d *store) removeTemp(files map[string][]byte) {
	for name := range files {
		if d.step("clear "+name) == nil {
			_ = os.Remove(d.tempPath(name)) // a later commit overwrites it
		}
	}
}

// writeSynced writes a file and syncs it to disk.
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

// install renames a file from its temporary to its final name.
func (d *store) install(name string) error {
	if err := d.step("rename " + name); err != nil {
		return err
	}
	return os.Rename(d.tempPath(name), d.path(name))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
