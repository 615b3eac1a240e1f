package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/minio/highwayhash"
	"github.com/nats-io/nats-server/v2/server"
)

// A stream's group keeps what it has agreed on in a directory of its own, and from
// time to time a snapshot of it. The server does not begin a group whose snapshot
// fails its checksum, and so has no part in that stream; but it goes on to hear
// the group, and keeps for ever in memory what nobody takes any more. So such a
// directory is put aside before the server starts, under another name, and a file
// takes its place: that, too, the server does not begin, and it hears nothing.
const (
	asideSuffix = ".damaged"
	groupStream = "stream" // a group's kind; the others are consumers'
)

// asideGroup is a stream's group whose directory was put aside.
type asideGroup struct{ stream, group string }

// setAside puts the damaged groups of the account's streams aside, and gives all
// that are.
func setAside(storeDir string, log *slog.Logger) (aside []asideGroup, err error) {
	groups := groupsDir(storeDir)
	entries, err := os.ReadDir(groups)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		group, before := strings.CutSuffix(e.Name(), asideSuffix)
		if !e.IsDir() || group == metaGroup { // without that one the server does not start
			continue
		}
		dir := filepath.Join(groups, e.Name())
		stream := streamOf(dir)
		if stream == "" {
			continue
		}
		damaged, failed := snapshotDamaged(dir, group)
		switch {
		case failed != nil:
			err = errors.Join(err, failed)
		case damaged:
			log.Error("what a stream's group agreed on is damaged: this node has no part in the stream until its copy is made anew", "stream", stream, "directory", dir)
			err = errors.Join(err, putAside(groups, group))
			aside = append(aside, asideGroup{stream, group})
		case before: // its snapshot was removed, and it did not come back to its place
			err = errors.Join(err, takeBack(groups, group))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look for damaged groups: %w", err)
	}
	return aside, nil
}

// putAside can be done twice.
func putAside(groups, group string) error {
	place := filepath.Join(groups, group)
	if info, err := os.Stat(place); err == nil && info.IsDir() {
		if err := os.Rename(place, place+asideSuffix); err != nil {
			return err
		}
	}
	return os.WriteFile(place, []byte("The group's directory is damaged, and lies beside this file.\n"), 0o600)
}

// takeBack puts a group's directory back to its place.
func takeBack(groups, group string) error {
	place := filepath.Join(groups, group)
	if err := os.Remove(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(place+asideSuffix, place)
}

// streamOf is the stream of the account that a group's directory belongs to; "" if
// it is another group's, or does not say.
func streamOf(dir string) string {
	var about struct {
		Metadata struct{ Account, Stream, Type string } `json:"metadata"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "meta.inf"))
	if err != nil || json.Unmarshal(text, &about) != nil {
		return ""
	}
	if m := about.Metadata; m.Account == account && m.Type == groupStream {
		return m.Stream
	}
	return ""
}

// snapshotDamaged tells whether a group's newest snapshot is not what was written:
// it ends with 8 bytes of HighwayHash over the rest, keyed by the group's name.
func snapshotDamaged(dir, group string) (bool, error) {
	snapshots := filepath.Join(dir, "snapshots")
	entries, err := os.ReadDir(snapshots)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	newest, at := "", [2]uint64{}
	for _, e := range entries {
		var is [2]uint64 // term and index
		if _, err := fmt.Sscanf(e.Name(), "snap.%d.%d", &is[0], &is[1]); err != nil || e.Name() != fmt.Sprintf("snap.%d.%d", is[0], is[1]) {
			continue // not one that was finished
		}
		if newest == "" || slices.Compare(is[:], at[:]) > 0 {
			newest, at = e.Name(), is
		}
	}
	if newest == "" {
		return false, nil
	}
	content, err := os.ReadFile(filepath.Join(snapshots, newest))
	if err != nil || len(content) < recordHash {
		return err == nil, err
	}
	key := sha256.Sum256([]byte(group))
	sum, err := highwayhash.New64(key[:])
	if err != nil {
		return false, err
	}
	end := len(content) - recordHash
	sum.Write(content[:end])
	return !bytes.Equal(sum.Sum(nil), content[end:]), nil
}

func groupsDir(storeDir string) string { return filepath.Join(storeDir, systemAccount, "_js_") }

// Unopened lists the streams in which this node has no part, because what their
// groups agreed on is damaged on its disk: until their copies are made anew, or
// they are removed.
func (c *Cluster) Unopened() (streams []string, err error) {
	if len(c.aside) == 0 {
		return nil, nil
	}
	open, err := c.groupsHere()
	if err != nil {
		return nil, err
	}
	for _, a := range c.aside {
		if open[a.stream] == "" && c.srv.JetStreamIsStreamAssigned(account, a.stream) {
			streams = append(streams, a.stream)
		}
	}
	slices.Sort(streams)
	return streams, nil
}

// groupsHere are the groups that are open on this node, by stream.
func (c *Cluster) groupsHere() (map[string]string, error) {
	info, err := c.srv.Jsz(&server.JSzOptions{Account: account, Streams: true, RaftGroups: true})
	if err != nil {
		return nil, fmt.Errorf("look at JetStream: %w", err)
	}
	groups := map[string]string{}
	for _, a := range info.AccountDetails {
		for i := range a.Streams {
			groups[a.Streams[i].Name] = a.Streams[i].RaftGroup
		}
	}
	return groups, nil
}
