package runnerscript

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Script is one scenario file.
type Script struct {
	Name string // of the file, without its extension
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

// Env is the cluster that scripts run against.
type Env struct {
	// Request sends a request to any node that answers. A refusal is a
	// *api.Error.
	Request func(ctx context.Context, subject string, body []byte) ([]byte, error)
	// Witness is the path of the file that all runners append to.
	Witness string
	// Overhop returns the Overhop address of a running node.
	Overhop func() string
	// Attempts is the number of attempts of a job that does not set it.
	Attempts uint32
	// OnNow is called at a script's "now" command with the ids of its jobs.
	// It may be nil.
	OnNow func(ctx context.Context, jobs []job.ID) error
}

// Result is the outcome of one script.
type Result struct {
	Script
	Got string // the script with its actual output
	Err error  // why the script could not finish, or a violated rule

	Jobs   int    // enqueued by the script
	Losses uint32 // dispatches that lost their runner or node
}

// Run runs all scripts concurrently and returns their results in order.
func Run(ctx context.Context, w Env, scripts []Script) []Result {
	results := make([]Result, len(scripts))
	var pendingCancels, all sync.WaitGroup
	pendingCancels.Add(len(scripts))
	for i, s := range scripts {
		all.Go(func() {
			p := &scriptRun{ctx: ctx, env: w, script: s, jobs: map[string]*scriptJob{}}
			p.pendingCancels, p.cancelsDone = &pendingCancels, sync.OnceFunc(pendingCancels.Done)
			p.cancelsLeft = strings.Count(s.Text, "\n> cancel ")
			defer p.cancelsDone()
			results[i].Script = s
			results[i].Got, results[i].Err = p.run()
			results[i].Jobs = len(p.jobs)
			for _, e := range p.jobs {
				results[i].Losses += e.losses
			}
		})
	}
	all.Wait()
	return results
}

// Diff returns the first difference between the expected and the actual output,
// or "" if there is none. With faults, an attempt that was lost and repeated
// counts once.
func (p *Result) Diff(faults bool) string {
	expected, actual := strings.Split(p.Text, "\n"), strings.Split(p.Got, "\n")
	for i := range max(len(expected), len(actual)) {
		expectedLine, actualLine := lineAt(expected, i), lineAt(actual, i)
		if faults {
			expectedLine, actualLine = dedupAttempts(expectedLine), dedupAttempts(actualLine)
		}
		if expectedLine != actualLine {
			return fmt.Sprintf("%s:%d: %s\n\twant %s\n\tgot  %s", filepath.Base(p.Path), i+1, p.Name, expectedLine, actualLine)
		}
	}
	return ""
}

func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

var attemptsLine = regexp.MustCompile(`^ran: [0-9 ]+$`)

// dedupAttempts removes repetitions of the same attempt from a "ran:" line.
func dedupAttempts(line string) string {
	if !attemptsLine.MatchString(line) {
		return line
	}
	return strings.Join(slices.Compact(strings.Fields(line)), " ")
}

// membersConfig extends a node's settings to the settings of a member of three. A
// standalone node would refuse a route to a runner it does not have.
const membersConfig = `
[node]
name = "n1"
[cluster]
members = [
  { name = "n1", route = "127.0.0.1:1", raft = "127.0.0.1:2" },
  { name = "n2", route = "127.0.0.1:3", raft = "127.0.0.1:4" },
  { name = "n3", route = "127.0.0.1:5", raft = "127.0.0.1:6" },
]
`

// WriteSettings copies yard.toml from the directory from to the directory to,
// extended to the settings of a member of three, and returns the copy's path.
func WriteSettings(from, to string) (string, error) {
	text, err := os.ReadFile(filepath.Join(from, "yard.toml"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(to, "yard.toml")
	return path, os.WriteFile(path, append(text, membersConfig...), 0o644)
}

// maxNATSRecord is the size in bytes up to which records are enqueued over NATS.
// Longer ones are enqueued over HTTP.
const maxNATSRecord = 1 << 20

// transportTimeout limits one request over HTTP or Overhop.
const transportTimeout = 20 * time.Second

// enqueueHTTP enqueues a record over HTTP at any node that answers.
func (run *scriptRun) enqueueHTTP(queue string, record []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(run.ctx, transportTimeout)
	defer cancel()
	raw, err := run.env.Request(ctx, api.SubjectStatus, []byte("{}"))
	if err != nil {
		return nil, err
	}
	var status struct{ HTTP string }
	if err := json.Unmarshal(raw, &status); err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+status.HTTP+"/v1/queues/"+queue+"/jobs", bytes.NewReader(record))
	if err != nil {
		return nil, err
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode == http.StatusAccepted {
		return text, err
	}
	var refusal struct{ Error struct{ Message string } }
	if err := json.Unmarshal(text, &refusal); err != nil {
		return nil, fmt.Errorf("%s: %.200q", answer.Status, text)
	}
	return nil, &api.Error{Code: strconv.Itoa(answer.StatusCode), Text: refusal.Error.Message}
}

// fullResult reads, over Overhop, a text result that is too long for an answer in
// JSON. It repeats the request until run.ctx ends.
func (run *scriptRun) fullResult(e *scriptJob) (string, error) {
	var err error
	for {
		var text string
		if text, err = run.result(e.jid); err == nil {
			return text, nil
		}
		if run.pause() != nil {
			return "", err
		}
	}
}

// result reads the text result of a job over a new Overhop connection.
func (run *scriptRun) result(jid string) (string, error) {
	ctx, cancel := context.WithTimeout(run.ctx, transportTimeout)
	defer cancel()
	c, err := overhop.Dial(ctx, run.env.Overhop(), overhop.Options{Plain: true})
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	record, err := c.Job(ctx, jid)
	_ = c.Close()
	<-ended
	if err != nil {
		return "", err
	}
	text, ok := record.Get("result").Str()
	if !ok {
		return "", fmt.Errorf("result of %s is not a text", jid)
	}
	return text, nil
}
