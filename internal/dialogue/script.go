package dialogue

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Script is a conversation as it is written down.
type Script struct {
	Name   string   // of the file, without its ending
	Config []string // "key value" of the server it wants; none: any will do

	file  string
	steps []step
}

// step is one line: who does what, how.
type step struct {
	line            int
	who, verb, rest string // who is empty on lines without a speaker
}

// alone are the verbs that have no speaker.
var alone = []string{"config", "queue", "name", "after", "yard", "violation"}

// spoken are the verbs that have one.
var spoken = []string{"connects", "hello", "registers", "->", "?>", "<-", "bytes", "gathers", "sends", "quiet", "closed", "leaves"}

// Load reads all conversations of a directory, in the order of their names.
func Load(dir string) ([]Script, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no conversations in %s (%v)", dir, err)
	}
	slices.Sort(files)
	var all []Script
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s := Script{Name: strings.TrimSuffix(filepath.Base(file), ".txt"), file: filepath.Base(file)}
		if err := s.read(string(text)); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (s *Script) read(text string) error {
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "#") || strings.TrimSpace(line) == "" {
			continue
		}
		if n := len(s.steps); n > 0 && (line[0] == ' ' || line[0] == '\t') {
			s.steps[n-1].rest += " " + strings.TrimSpace(line)
			continue
		}
		who, rest, _ := strings.Cut(line, " ")
		st := step{line: i + 1, who: who}
		st.verb, st.rest, _ = strings.Cut(strings.TrimSpace(rest), " ")
		if slices.Contains(alone, who) {
			st = step{line: i + 1, verb: who, rest: rest}
		} else if !slices.Contains(spoken, st.verb) {
			return fmt.Errorf("%s:%d: %q is nothing to do", s.file, i+1, st.verb)
		}
		st.rest = strings.TrimSpace(st.rest)
		if st.verb == "config" {
			s.Config = append(s.Config, st.rest)
		} else {
			s.steps = append(s.steps, st)
		}
	}
	return nil
}

// NeedsWorld tells why only a world made for the conversation will do; "" if
// any yard will.
func (s *Script) NeedsWorld() string {
	if len(s.Config) > 0 {
		return "it wants a config"
	}
	for _, st := range s.steps {
		if st.verb == "after" || st.verb == "yard" {
			return fmt.Sprintf("line %d says %s", st.line, st.verb)
		}
	}
	return ""
}

// at names a step for people.
func (s *Script) at(st step) string { return fmt.Sprintf("%s:%d", s.file, st.line) }
