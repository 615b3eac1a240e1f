package wirescript

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Script is a parsed conversation.
type Script struct {
	Name   string   // of the file, without its extension
	Config []string // "key value" settings the server needs; empty if any server will do

	file  string
	steps []step
}

// step is one line: a client, a verb and its arguments.
type step struct {
	line               int
	client, verb, args string // client is empty in directives
}

// globalVerbs are the verbs of directives: lines without a client.
var globalVerbs = []string{"config", "queue", "name", "after", "yard", "violation"}

// clientVerbs are the verbs that follow a client.
var clientVerbs = []string{"connects", "hello", "registers", "->", "?>", "<-", "bytes", "gathers", "sends", "quiet", "closed", "leaves"}

// Load parses all conversations of a directory, in the order of their names.
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
			s.steps[n-1].args += " " + strings.TrimSpace(line)
			continue
		}
		first, rest, _ := strings.Cut(line, " ")
		st := step{line: i + 1, client: first}
		st.verb, st.args, _ = strings.Cut(strings.TrimSpace(rest), " ")
		if slices.Contains(globalVerbs, first) {
			st = step{line: i + 1, verb: first, args: rest}
		} else if !slices.Contains(clientVerbs, st.verb) {
			return fmt.Errorf("%s:%d: unknown verb %q", s.file, i+1, st.verb)
		}
		st.args = strings.TrimSpace(st.args)
		if st.verb == "config" {
			s.Config = append(s.Config, st.args)
		} else {
			s.steps = append(s.steps, st)
		}
	}
	return nil
}

// NeedsEnv returns why the script needs an environment created for it, or "" if
// it can run against any cluster.
func (s *Script) NeedsEnv() string {
	if len(s.Config) > 0 {
		return "it has a config"
	}
	for _, st := range s.steps {
		if st.verb == "after" || st.verb == "yard" {
			return fmt.Sprintf("line %d uses %s", st.line, st.verb)
		}
	}
	return ""
}

// location returns the file and line of a step.
func (s *Script) location(st step) string { return fmt.Sprintf("%s:%d", s.file, st.line) }
