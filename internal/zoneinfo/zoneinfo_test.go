package zoneinfo

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	for _, name := range Names() {
		if zone, err := Load(name); err != nil || zone.String() != name {
			t.Errorf("%s: %v, %v", name, zone, err)
		}
	}
	for _, name := range []string{"", "Local", "localtime", "posix/Europe/Berlin", "europe/berlin", "Europe", "Europe/", "../zoneinfo.go"} {
		if zone, err := Load(name); err == nil {
			t.Errorf("%q is %v", name, zone)
		}
	}
}

// A database of the environment, which package time would use, has no effect.
func TestLoad_OtherDatabase(t *testing.T) {
	dir := t.TempDir()
	kathmandu, err := files()["Asia/Kathmandu"].Open()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, "Berlin"))
	if err == nil {
		_, err = file.ReadFrom(kathmandu)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("ZONEINFO", dir)
	if zone, err := time.LoadLocation("Berlin"); err != nil || offset(zone) != 20700 {
		t.Skip("package time has read the environment before") // it does so once
	}
	if zone, err := Load("Berlin"); err == nil {
		t.Errorf("Berlin is %v", zone)
	}
	if zone, err := Load("Europe/Berlin"); err != nil || offset(zone) != 3600 {
		t.Errorf("Europe/Berlin: offset %d, %v", offset(zone), err)
	}
}

func offset(zone *time.Location) int {
	_, seconds := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).In(zone).Zone()
	return seconds
}

func TestVersion(t *testing.T) {
	if !regexp.MustCompile(`^20\d\d[a-z]-[0-9a-f]{8}$`).MatchString(Version()) {
		t.Errorf("version %q", Version())
	}
}
