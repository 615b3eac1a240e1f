package scenario

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"yardmaster/job"
)

// Script is one file.
type Script struct {
	Name string // of the file, without its ending
	Path string
	Text string
}

// Load reads every script of a directory.
func Load(dir string) ([]Script, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(paths) == 0 {
		return nil, fmt.Errorf("no scenarios in %s: %v", dir, err)
	}
	var scripts []Script
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, Script{strings.TrimSuffix(filepath.Base(path), ".txt"), path, string(text)})
	}
	return scripts, nil
}

// World is the yard that scripts are played on.
type World struct {
	// Ask asks any node that answers. A refusal is a *cluster.APIError.
	Ask func(ctx context.Context, subject string, question []byte) ([]byte, error)
	// Witness is the file that all runners write to.
	Witness string
	// Overhop is the address of a node that lives.
	Overhop func() string
	// Attempts is what a job has that names none.
	Attempts uint32
	// Now is what happens where a script says so, knowing the ids of its jobs;
	// nil: nothing.
	Now func(ctx context.Context, jobs []job.ID) error
}

// Played is what a script yielded.
type Played struct {
	Script
	Got string // the script with what came out
	Err error  // why it could not be played to its end, or what must never be

	Jobs   int    // that it enqueued
	Losses uint32 // how often one of them lost its runner or its node
}

// Play plays all scripts at once.
func Play(ctx context.Context, w World, scripts []Script) []Played {
	played := make([]Played, len(scripts))
	var calm, all sync.WaitGroup
	calm.Add(len(scripts))
	for i, s := range scripts {
		all.Go(func() {
			p := &player{ctx: ctx, world: w, script: s, jobs: map[string]*entry{}}
			p.calm, p.calmed = &calm, sync.OnceFunc(calm.Done)
			p.cancels = strings.Count(s.Text, "\n> cancel ")
			defer p.calmed()
			played[i].Script = s
			played[i].Got, played[i].Err = p.play()
			played[i].Jobs = len(p.jobs)
			for _, e := range p.jobs {
				played[i].Losses += e.losses
			}
		})
	}
	all.Wait()
	return played
}

// Differs tells where what came out is not what is written; "" if nowhere.
// Where something died, an attempt may have been given back and begun again.
func (p *Played) Differs(somethingDied bool) string {
	want, got := strings.Split(p.Text, "\n"), strings.Split(p.Got, "\n")
	for i := range max(len(want), len(got)) {
		w, g := at(want, i), at(got, i)
		if somethingDied {
			w, g = once(w), once(g)
		}
		if w != g {
			return fmt.Sprintf("%s:%d: %s\n\twant %s\n\tgot  %s", filepath.Base(p.Path), i+1, p.Name, w, g)
		}
	}
	return ""
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

var ranLine = regexp.MustCompile(`^ran: [0-9 ]+$`)

// once names an attempt once that was begun more often.
func once(line string) string {
	if !ranLine.MatchString(line) {
		return line
	}
	return strings.Join(slices.Compact(strings.Fields(line)), " ")
}
