package cli

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"yardmaster/job"
)

// read cuts lines into chunks. A chunk goes when it is full, or when no further
// line is there yet: whoever writes one line at a time gets one answer at a
// time.
func (b *bulk) read(in io.Reader, give func(*chunk) bool) error {
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
			item := b.item(line, text, tooLong)
			if len(c.items) > 0 && c.bytes+len(item.job) > chunkBytes {
				if !give(c) {
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
			if !give(c) {
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

// item reads a line. One without an id is given one here, so that it is the
// same job however often it has to be sent; no UUID, which a node would have
// to look up first.
func (b *bulk) item(line int, text []byte, tooLong bool) bulkItem {
	item := bulkItem{Line: line}
	if tooLong || len(text) > maxBulkLine {
		item.Error = &bulkError{Code: "413", Text: fmt.Sprintf("the line is too long: at most %d bytes fit into a request", maxBulkLine)}
		return item
	}
	var known bulkLine
	if err := json.Unmarshal(text, &known); err != nil || text[0] != '{' {
		reason := "it is no object"
		if err != nil {
			reason = err.Error()
		}
		item.Error = &bulkError{Code: "400", Text: fmt.Sprintf(`the line is not a job as JSON, like {"function":"send"}: %s`, reason)}
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
	item.job = fmt.Appendf(item.job, `"id":%q}`, key) // at the end: of two fields of a name the last one counts
	item.minted, _ = job.KeyID(queue, key)            // of a queue with a bad name: none, and the yard says so
	return item
}
