// Package zoneinfo holds the IANA time zone database from which cron ticks are computed. It is a
// part of the program, so that all members with the same build compute the same ticks:
// [time.LoadLocation] would prefer the databases of the environment and of the host.
package zoneinfo

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed" // the database
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:generate go run update.go

var (
	//go:embed zoneinfo.zip
	archive []byte
	//go:embed release.txt
	release string
)

// files returns the files of the database by the names of their zones.
var files = sync.OnceValue(func() map[string]*zip.File {
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		panic("zoneinfo: the embedded database: " + err.Error())
	}
	byName := make(map[string]*zip.File, len(r.File))
	for _, f := range r.File {
		if !f.FileInfo().IsDir() {
			byName[f.Name] = f
		}
	}
	return byName
})

// Version returns the release of the database with a hash of its content, such as
// "2025c-9c1d7f3a". Databases with the same version are the same.
var Version = sync.OnceValue(func() string {
	hash := sha256.Sum256(archive)
	return strings.TrimSpace(release) + "-" + hex.EncodeToString(hash[:4])
})

// Load returns the zone of an IANA name, such as "Europe/Berlin", which is case-sensitive. It
// returns an error if the database has no such zone.
func Load(name string) (*time.Location, error) {
	f := files()[name]
	if f == nil {
		return nil, fmt.Errorf("there is no time zone %q in the database %s", name, Version())
	}
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("time zone %s: %w", name, err)
	}
	data, err := io.ReadAll(r) // checks the sum of the archive
	if err != nil {
		return nil, fmt.Errorf("time zone %s: %w", name, err)
	}
	return time.LoadLocationFromTZData(name, data)
}

// Names returns the names of all zones in order. One of them, "Factory", stands for a zone that
// was not set.
func Names() []string { return slices.Sorted(maps.Keys(files())) }
