package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
)

// All numbers in the files are big endian, and checksums are CRC-32C.
const (
	magic           = "YARDLOG1"
	segmentHeadSize = 32 // magic, number u64, first index u64, size of the file u32, checksum u32
	frameHeadSize   = 16 // sectors of zeros u32, size of the payload u32, its checksum u32, checksum of the header u32
	entryHeadSize   = 33 // index u64, term u64, time u64 (Unix ns, 0: none), type u8, size of extensions u32, size of data u32

	// Frames are aligned, so that a sector has all of a frame's header or nothing of it.
	frameAlign = frameHeadSize

	// sectorSize is the unit that a disk writes completely or not at all. Larger sectors
	// consist of several such units.
	sectorSize = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segmentHead returns the header of a segment.
func segmentHead(number, first uint64, size int64) []byte {
	head := binary.BigEndian.AppendUint64([]byte(magic), number)
	head = binary.BigEndian.AppendUint64(head, first)
	head = binary.BigEndian.AppendUint32(head, uint32(size))
	return binary.BigEndian.AppendUint32(head, crc32.Checksum(head, castagnoli))
}

// firstIndex returns the first index in the header of segment number, which has size
// bytes.
func firstIndex(head []byte, number uint64, size int64) (uint64, error) {
	first := binary.BigEndian.Uint64(head[16:])
	fullSize := int64(binary.BigEndian.Uint32(head[24:]))
	switch {
	case !bytes.Equal(head, segmentHead(number, first, fullSize)):
		return 0, errors.New("its header is not valid")
	case size != fullSize:
		return 0, fmt.Errorf("it has %d of %d bytes", size, fullSize)
	}
	return first, nil
}

// appendFrame appends a frame for the given offset of a segment to buf. It returns the
// positions of the entries in the segment.
func appendFrame(buf []byte, number, offset uint64, entries []*raft.Log) ([]byte, []position) {
	begin := len(buf)
	buf = append(buf, make([]byte, frameHeadSize)...)
	positions := make([]position, len(entries))
	for i, e := range entries {
		at := len(buf)
		buf = appendEntry(buf, e)
		positions[i] = position{offset: uint32(offset) + uint32(at-begin), size: uint32(len(buf) - at)}
	}
	payload := buf[begin+frameHeadSize:]
	head := buf[begin : begin+frameHeadSize]
	binary.BigEndian.PutUint32(head[4:], uint32(len(payload)))
	binary.BigEndian.PutUint32(head, zeroSectors(buf[begin:], int(offset))) // the header's sector has the size
	binary.BigEndian.PutUint32(head[8:], crc32.Checksum(payload, castagnoli))
	binary.BigEndian.PutUint32(head[12:], frameHeadSum(head, number, offset))
	padding := padded(len(payload)) - len(payload)
	return append(buf, make([]byte, padding)...), positions
}

// frameHeadSum returns the checksum of a frame's header, which includes its place.
func frameHeadSum(head []byte, number, offset uint64) uint32 {
	var place [16]byte
	binary.BigEndian.PutUint64(place[:], number)
	binary.BigEndian.PutUint64(place[8:], offset)
	return crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, head[:12])
}

// zeroSectors returns in how many sectors of a segment the bytes of a frame, which begins at
// offset, are all zero. The frame is given without its padding.
func zeroSectors(frame []byte, offset int) (n uint32) {
	for len(frame) > 0 {
		size := min(sectorSize-offset%sectorSize, len(frame))
		if isZero(frame[:size]) {
			n++
		}
		frame, offset = frame[size:], offset+size
	}
	return n
}

func isZero(b []byte) bool { return len(bytes.TrimRight(b, "\x00")) == 0 }

func padded(size int) int { return (size + frameAlign - 1) / frameAlign * frameAlign }

// errNoFrame is returned for a place without the header of a frame.
var errNoFrame = errors.New("no valid header of a frame")

// frameSize returns the size of the payload of the frame at offset.
func frameSize(content []byte, number uint64, offset int) (int, error) {
	if offset+frameHeadSize > len(content) {
		return 0, errNoFrame
	}
	head := content[offset : offset+frameHeadSize]
	size := int64(binary.BigEndian.Uint32(head[4:]))
	isValid := binary.BigEndian.Uint32(head[12:]) == frameHeadSum(head, number, uint64(offset))
	if !isValid || size == 0 || size > int64(len(content)-offset-frameHeadSize) {
		return 0, errNoFrame
	}
	return int(size), nil
}

// framePayload returns the payload of the frame at offset, if it is complete.
func framePayload(content []byte, number uint64, offset int) ([]byte, error) {
	size, err := frameSize(content, number, offset)
	if err != nil {
		return nil, err
	}
	payload := content[offset+frameHeadSize : offset+frameHeadSize+size]
	if crc32.Checksum(payload, castagnoli) != binary.BigEndian.Uint32(content[offset+8:]) {
		return nil, errors.New("the checksum of a frame does not match")
	}
	return payload, nil
}

func appendEntry(buf []byte, e *raft.Log) []byte {
	buf = binary.BigEndian.AppendUint64(buf, e.Index)
	buf = binary.BigEndian.AppendUint64(buf, e.Term)
	at := int64(0)
	if !e.AppendedAt.IsZero() {
		at = e.AppendedAt.UnixNano()
	}
	buf = binary.BigEndian.AppendUint64(buf, uint64(at))
	buf = append(buf, byte(e.Type))
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(e.Extensions)))
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(e.Data)))
	buf = append(buf, e.Extensions...)
	return append(buf, e.Data...)
}

// decodeEntry decodes the entry at the beginning of raw into e, which refers to raw
// afterwards, and returns its size.
func decodeEntry(raw []byte, e *raft.Log) (int, error) {
	if len(raw) < entryHeadSize {
		return 0, fmt.Errorf("an entry of %d bytes", len(raw))
	}
	extensions := uint64(binary.BigEndian.Uint32(raw[25:]))
	data := uint64(binary.BigEndian.Uint32(raw[29:]))
	end := entryHeadSize + extensions + data
	if end > uint64(len(raw)) {
		return 0, fmt.Errorf("an entry of %d bytes in %d", end, len(raw))
	}
	*e = raft.Log{
		Index:      binary.BigEndian.Uint64(raw),
		Term:       binary.BigEndian.Uint64(raw[8:]),
		Type:       raft.LogType(raw[24]),
		Extensions: raw[entryHeadSize : entryHeadSize+extensions : entryHeadSize+extensions],
		Data:       raw[entryHeadSize+extensions : end : end],
	}
	if at := int64(binary.BigEndian.Uint64(raw[16:])); at != 0 {
		e.AppendedAt = time.Unix(0, at)
	}
	return int(end), nil
}
