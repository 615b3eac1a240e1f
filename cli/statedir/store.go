package statedir

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// store is a directory whose lock is held.
type store struct {
	dir         string
	lock        *os.File
	now         time.Time              // of this command
	crashBefore func(step string) bool // for tests: whether to stop before a step

	onDisk     digests // of the views on disk; set by readViews
	viewsStale bool    // a view differs from the state file; set by load
}

func (d *store) path(name string) string { return filepath.Join(d.dir, name) }

// close releases the lock.
func (d *store) close() { d.lock.Close() }

// load reads all files and returns the state, or nil if the directory has none. A view
// is missing or outdated if the last command was killed; load accepts that and sets
// d.viewsStale, so that the next commit writes the view. For any other unexpected
// content of a file it returns a damagedError.
func (d *store) load() (*state, error) {
	s, recorded, err := d.readStateFile()
	if err != nil {
		return nil, err
	}
	views, err := d.readViews()
	if err != nil {
		return nil, err
	}
	for _, view := range viewFiles {
		content, exists := views[view.name]
		if !exists {
			d.viewsStale = true
			continue
		}
		if d.onDisk[view.name] == recorded.Committed[view.name] { // the view of this state
			continue
		}
		d.viewsStale = true
		if d.onDisk[view.name] == recorded.Replaced[view.name] { // the last commit was interrupted
			continue
		}
		if err := view.check(content); err != nil {
			return nil, d.damaged(view.name, err, s != nil)
		}
		if s != nil && view.name == eventsFile {
			return nil, d.damaged(eventsFile, errChangedOutside, true)
		}
	}
	if s == nil {
		return d.importOriginal(views)
	}
	if recorded.Committed[mailboxFile] == "" { // format 1 left the mailbox to other programs
		if err := s.importMailbox(views[mailboxFile]); err != nil {
			return nil, d.damaged(mailboxFile, err, true)
		}
	}
	return s, nil
}

// readViews returns the contents of the views that exist, by file name, and sets
// d.onDisk to their digests.
func (d *store) readViews() (map[string][]byte, error) {
	views := make(map[string][]byte)
	d.onDisk = make(digests)
	for _, view := range viewFiles {
		content, err := os.ReadFile(d.path(view.name))
		if isNotExist(err) {
			continue
		}
		if err != nil {
			return nil, ioError(err)
		}
		views[view.name], d.onDisk[view.name] = content, digest(content)
	}
	return views, nil
}

// readStateFile reads and decodes the state file. It returns nil and no digests if
// the file does not exist.
func (d *store) readStateFile() (*state, viewDigests, error) {
	file, err := os.ReadFile(d.path(stateFile))
	if isNotExist(err) {
		return nil, viewDigests{}, nil
	}
	if err != nil {
		return nil, viewDigests{}, ioError(err)
	}
	s, recorded, err := decodeState(file)
	if err == nil {
		return s, recorded, nil
	}
	remedy := fmt.Sprintf("restore it from a backup, or move it away to continue from %s, or start with an empty state by 'yardmaster init %s'", eventsFile, d.dir)
	if errors.Is(err, errNewerFormat) {
		remedy = "run that release"
	}
	return nil, viewDigests{}, &damagedError{File: d.path(stateFile), Err: err, Remedy: remedy}
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
	return &damagedError{File: d.path(name), Err: err, Remedy: remedy}
}

// step is called before each change on disk. It returns an error if a test stops
// there.
func (d *store) step(name string) error {
	if d.crashBefore != nil && d.crashBefore(name) {
		return errCrashed
	}
	return nil
}

// commit replaces the state on disk by s, and the views, files that show parts of the
// state, if they have changed. All files are first written under temporary names. The
// rename of the state file commits the state; a view that is not renamed after that, for
// example because the process is killed, is rewritten by the next command.
func (d *store) commit(s *state) error {
	files, err := s.views(d.now)
	if err != nil {
		return err
	}
	recorded := viewDigests{Committed: make(digests), Replaced: d.onDisk}
	for name, content := range files {
		recorded.Committed[name] = digest(content)
		if recorded.Committed[name] == d.onDisk[name] {
			delete(files, name)
		}
	}
	changedViews := maps.Clone(files)
	if files[stateFile], err = s.encode(recorded); err != nil {
		return err
	}

	if err := d.writeTemp(files); err != nil { // nothing is committed yet
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
		if _, changed := changedViews[view.name]; !changed {
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
	errs := make([]error, len(files))
	var writes sync.WaitGroup
	defer writes.Wait()
	for i, name := range slices.Sorted(maps.Keys(files)) {
		if err := d.step("write " + name); err != nil {
			return err
		}
		writes.Go(func() { errs[i] = writeSynced(d.tempPath(name), files[name]) })
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
func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
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

// syncDir syncs a directory to disk, so that the renames in it survive a crash of
// the machine.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
