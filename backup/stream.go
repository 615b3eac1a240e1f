package backup

import (
	"context"
	"errors"
	"io"

	"github.com/yardmaster-dev/yardmaster/api"
)

// OpenBackup starts a backup, as [Server.BeginBackup] does, and returns the file. A read
// returns an error unless it is complete. The caller closes the file, which ends the
// backup. ctx must not end before.
func (b *Server) OpenBackup(ctx context.Context) (io.ReadCloser, error) {
	begun, err := b.BeginBackup(ctx)
	if err != nil {
		return nil, err
	}
	return &backupReader{ctx: ctx, server: b, next: api.BackupRequest{Session: begun.Session}}, nil
}

// backupReader reads the file of a backup in chunks.
type backupReader struct {
	ctx    context.Context
	server *Server
	next   api.BackupRequest
	chunk  []byte // rest of the chunk before next
	ended  bool
}

// Read implements [io.Reader]. It blocks until there is a chunk.
func (r *backupReader) Read(buffer []byte) (int, error) {
	for len(r.chunk) == 0 && !r.ended {
		chunk, err := r.server.ReadBackup(r.ctx, &r.next)
		if slow, ok := errors.AsType[*api.Error](err); ok && slow.Code == api.CodeTimeout && r.ctx.Err() == nil {
			continue
		}
		if err != nil {
			return 0, err
		}
		r.next.Offset += int64(len(chunk))
		r.chunk, r.ended = chunk, len(chunk) == 0
	}
	if r.ended {
		return 0, io.EOF
	}
	n := copy(buffer, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

// Close implements [io.Closer].
func (r *backupReader) Close() error {
	_, err := r.server.EndBackup(context.WithoutCancel(r.ctx), &api.BackupRequest{Session: r.next.Session})
	return err
}
