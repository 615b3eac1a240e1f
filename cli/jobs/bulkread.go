package jobs

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// read cuts the lines of in into chunks and passes them to emit until that
// returns false. A chunk is emitted when it is full or when no further line is
// buffered, so that a program that writes one line at a time gets a result for
// each line at once.
func (b *bulk) read(in io.Reader, emit func(*chunk) bool) error {
	r := bufio.NewReaderSize(in, maxRequest)
	c := &chunk{done: make(chan struct{})}
	for line := 1; ; line++ {
		text, err := r.ReadSlice('\n')
		tooLong := false
		for errors.Is(err, bufio.ErrBufferFull) {
			tooLong = true
			_, err = r.ReadSlice('\n')
		}
		if text = bytes.TrimSpace(text); len(text) > 0 {
			item := b.parseLine(line, text, tooLong)
			if len(c.items) > 0 && c.bytes+len(item.job) > chunkBytes {
				if !emit(c) {
					return nil
				}
				c = &chunk{done: make(chan struct{})}
			}
			c.items = append(c.items, item)
			c.bytes += len(item.job)
		}
		ready, _ := r.Peek(r.Buffered())
		full := len(c.items) == chunkJobs || bytes.IndexByte(ready, '\n') < 0 || err != nil
		if full && len(c.items) > 0 {
			if !emit(c) {
				return nil
			}
			c = &chunk{done: make(chan struct{})}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// parseLine returns the item of a line. A line without an id gets a generated
// one, so that repeated requests make only one job. The generated id is not a
// UUID, because a node has to look up a UUID first.
func (b *bulk) parseLine(line int, text []byte, tooLong bool) bulkItem {
	item := bulkItem{Line: line}
	if tooLong || len(text) > maxBulkLine {
		item.Error = &api.BulkError{Code: api.CodeTooLarge, Text: fmt.Sprintf("the line is longer than %d bytes, which is the most that fits into a request", maxBulkLine)}
		return item
	}
	var known struct{ ID, Queue string } // the line is sent unchanged, so that its numbers keep all their digits
	if err := json.Unmarshal(text, &known); err != nil || text[0] != '{' {
		reason := "it is not an object"
		if err != nil {
			reason = err.Error()
		}
		item.Error = &api.BulkError{Code: api.CodeInvalid, Text: fmt.Sprintf(`the line is not a job as JSON, like {"function":"send"}: %s`, reason)}
		return item
	}
	item.job = bytes.Clone(text)
	if known.ID != "" {
		return item
	}
	key, queue := "auto-"+rand.Text(), b.queue
	if known.Queue != "" {
		queue = known.Queue
	}
	item.job = bytes.TrimRight(item.job[:len(item.job)-1], " \t\r")
	if len(item.job) > 1 {
		item.job = append(item.job, ',')
	}
	item.job = fmt.Appendf(item.job, `"id":%q}`, key) // at the end: the last of two equal keys wins
	item.minted, _ = job.KeyID(queue, key)            // fails for an invalid queue, which the node refuses
	return item
}
