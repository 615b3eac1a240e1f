package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/internal/durable"
)

const (
	segmentSuffix    = ".wal"
	unfinishedSuffix = ".new" // of a segment that is being created
)

// segment is one file of the log.
type segment struct {
	file    *os.File
	path    string
	number  uint64     // increases from one segment to the next
	first   uint64     // index of its first entry
	entries []position // of the entries first, first+1, …
	end     int64      // offset of the next frame
	size    int64      // of the file
}

// position is where an entry is in its file.
type position struct{ offset, size uint32 }

// last returns the index of the last entry, or first-1 if there is none.
func (s *segment) last() uint64 { return s.first + uint64(len(s.entries)) - 1 }

// createSegment creates a segment of size bytes, without entries. If it returns an error,
// the file may nevertheless be there.
func createSegment(dir string, number, first uint64, size int64) (*segment, error) {
	path := filepath.Join(dir, fmt.Sprintf("%010d%s", number, segmentSuffix))
	f, err := os.OpenFile(path+unfinishedSuffix, os.O_CREATE|os.O_TRUNC|os.O_RDWR, durable.FileMode)
	if err != nil {
		return nil, err
	}
	err = preallocate(f, size)
	if err == nil {
		_, err = f.WriteAt(segmentHead(number, first, size), 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = durable.SyncDir(dir)
	}
	if err != nil {
		if removeErr := os.Remove(f.Name()); !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
		return nil, errors.Join(err, f.Close())
	}
	return &segment{file: f, path: path, number: number, first: first, end: segmentHeadSize, size: size}, nil
}

// segmentFile is a segment that has not been read completely yet.
type segmentFile struct {
	path          string
	number, first uint64
}

// listSegments returns the segments in dir, in the order of their numbers. It removes the
// files of those that were not created completely, and ignores other files.
func listSegments(dir string) ([]segmentFile, error) {
	files, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	var list []segmentFile
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if strings.HasSuffix(path, segmentSuffix+unfinishedSuffix) {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		digits, isSegment := strings.CutSuffix(f.Name(), segmentSuffix)
		number, err := strconv.ParseUint(digits, 10, 64)
		if !isSegment || err != nil {
			continue
		}
		first, err := readFirstIndex(path, number)
		if err != nil {
			return nil, err
		}
		list = append(list, segmentFile{path: path, number: number, first: first})
	}
	return list, nil
}

// readFirstIndex reads the first index of a segment from its header.
func readFirstIndex(path string, number uint64) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	head := make([]byte, segmentHeadSize)
	if _, err := f.ReadAt(head, 0); err != nil && err != io.EOF { // a short header is not valid
		return 0, err
	}
	first, err := firstIndex(head, number, info.Size())
	if err != nil {
		return 0, &CorruptError{File: filepath.Base(path), Err: err}
	}
	return first, nil
}

// openSegment reads a segment. next is the first index of the following one, before which
// the entries must end, or 0 for the last segment. isComplete reports whether the segment
// can be appended to, because nothing follows its last frame.
func openSegment(file segmentFile, next uint64) (s *segment, isComplete bool, err error) {
	f, err := os.OpenFile(file.path, os.O_RDWR, 0)
	if err != nil {
		return nil, false, err
	}
	if next == 0 {
		err = refresh(f)
	}
	var content []byte
	if err == nil {
		content, err = io.ReadAll(f)
	}
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	s = &segment{file: f, path: file.path, number: file.number, first: file.first, end: segmentHeadSize, size: int64(len(content))}
	if isComplete, err = s.scan(content, next); err != nil {
		return nil, false, errors.Join(&CorruptError{File: filepath.Base(file.path), Offset: s.end, Err: err}, f.Close())
	}
	return s, isComplete, nil
}

// refresh makes what can be read of f durable. The process may have ended before the last
// frame was synced, or after that had failed. What was not written can be read from memory
// then, where the system takes it for written and no sync writes it, so it is read from the disk.
func refresh(f *os.File) error {
	if err := f.Sync(); err != nil {
		return err
	}
	return dropCache(f)
}

// scan finds the entries in the content of a segment.
func (s *segment) scan(content []byte, next uint64) (isComplete bool, err error) {
	var frameErr error
	for frameErr == nil && (next == 0 || s.last()+1 < next) {
		var payload []byte
		if payload, frameErr = framePayload(content, s.number, int(s.end)); frameErr != nil {
			break
		}
		if err := s.scanEntries(payload); err != nil {
			return false, err
		}
		s.end += int64(frameHeadSize + padded(len(payload)))
	}
	switch rest := content[min(s.end, s.size):]; {
	case next != 0 && s.last()+1 < next:
		return false, fmt.Errorf("entries %d to %d are missing: %w", s.last()+1, next-1, frameErr)
	case next != 0:
		s.entries = s.entries[:next-s.first]
		return false, nil
	case isZero(rest):
		return true, nil
	case interrupted(content, s.number, int(s.end)):
		return false, nil
	}
	return false, fmt.Errorf("after entry %d: %w", s.last(), frameErr)
}

// scanEntries adds the entries of the frame at s.end.
func (s *segment) scanEntries(payload []byte) error {
	for at := 0; at < len(payload); {
		var e raft.Log
		size, err := decodeEntry(payload[at:], &e)
		if err != nil {
			return err
		}
		if e.Index != s.last()+1 {
			return fmt.Errorf("entry %d follows entry %d", e.Index, s.last())
		}
		s.entries = append(s.entries, position{offset: uint32(s.end) + frameHeadSize + uint32(at), size: uint32(size)})
		at += size
	}
	return nil
}

// interrupted reports whether what follows the last complete frame, at offset, can be a
// frame whose write a power loss interrupted. The disk then has some of its sectors, and
// zeros in place of the others: more sectors of zeros than were written. It has nothing that was
// written after the frame, because a write begins after the one before it was synced. Anything
// else was complete and is damaged.
//
// A complete frame looks the same if it is the last one and the damage is that all of a sector
// has become zero.
func interrupted(content []byte, number uint64, offset int) bool {
	size, err := frameSize(content, number, offset)
	if err != nil {
		sectorEnd := min((offset/sectorSize+1)*sectorSize, len(content))
		return isZero(content[offset:sectorEnd]) && !hasFrame(content[sectorEnd:], content, number)
	}
	end := offset + frameHeadSize + size
	written := binary.BigEndian.Uint32(content[offset:]) // sectors of zeros
	return isZero(content[end:]) && zeroSectors(content[offset:end], offset) > written
}

// hasFrame reports whether a complete frame begins in rest, which is the end of content.
func hasFrame(rest, content []byte, number uint64) bool {
	for at := len(content) - len(rest); at < len(content); at += frameAlign {
		if _, err := framePayload(content, number, at); err == nil {
			return true
		}
	}
	return false
}
