// Package arch holds the house to its plan: who may import whom, which
// dependency lives in which room, and what the pure packages never do. It
// consists of tests alone.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const module = "yardmaster"

// A package of the house may import these others of it. The key covers the
// packages below it, unless they have a line of their own.
var floors = map[string]struct {
	may []string
	why string
}{
	"job":            {nil, "the nouns stand on nothing"},
	"ledger":         {[]string{"job"}, "the record is pure: it knows the nouns and nobody who acts"},
	"consensus":      {[]string{"job", "ledger", "internal"}, "a room knows no other room: it agrees on entries, whatever they are for"},
	"cluster":        {[]string{"job", "ledger", "internal"}, "a room knows no other room: it carries messages, whoever asked"},
	"scheduler":      {[]string{"job", "ledger", "internal"}, "a room knows no other room: the mind declares what it needs, the roof binds it"},
	"agent":          {[]string{"job", "internal"}, "a room knows no other room, and a node's hands do not read the ledger"},
	"edge":           {[]string{"job", "internal"}, "a room knows no other room, and a door does not read the ledger"},
	"edge/overhop":   {[]string{"internal"}, "a protocol speaks of its wire, not of our jobs"},
	"runnerpool":     {[]string{"job", "internal"}, "a room knows no other room, and a pool does not read the ledger"},
	"runnerpool/rrq": {[]string{"internal"}, "a protocol speaks of its wire, not of our jobs"},
	"tracing":        {[]string{"job", "internal"}, "a room knows no other room: it hears of dispatches from the roof"},
	"client":         {[]string{"job", "edge/overhop", "runnerpool/rrq", "internal"}, "users' programs must not carry a node along"},
	"examples":       {[]string{"client", "edge/overhop", "runnerpool/rrq"}, "an example shows what a user has, the wire and the client"},
	"scrub":          {nil, "what a copy holds is read, and others are asked, by the roof"},
	"vigil":          {nil, "a node's watch over itself decides by what the roof tells it"},
	"backup":         {[]string{"job", "ledger"}, "a backup's file is read without a yard: it knows the record and nobody who acts"},
	"board":          {[]string{"internal"}, "what a board shows and where it lies is the roof's to bind"},
	"web":            {[]string{"job", "ledger", "internal"}, "HTTP is a door: the roof binds what it shows"},
	"membership":     {[]string{"ledger", "internal"}, "who belongs to the yard is told to Raft and NATS by the roof"},
	"node":           {[]string{"job", "ledger", "membership", "consensus", "cluster", "scheduler", "agent", "edge", "runnerpool", "tracing", "board", "web", "vigil", "scrub", "backup", "internal"}, "the roof knows every room; nothing above it is its business"},
	"internal":       {nil, "the ground carries all and knows nobody"},

	"cli/statedir": {[]string{"ledger"}, "a directory holds what the contract's commands make, and has no yard"},
	"cli":          {[]string{"*"}, "verbs reach whatever they show"}, "cmd": {[]string{"*"}, "main binds it all"},
	"bench": {[]string{"*"}, "measures every floor"}, "drill": {[]string{"*"}, "breaks every part"}, "drill/check": {nil, "judges by what it is told, and shares no code with the accused"}, "drill/hosts": {nil, "knows hosts and cables, not who uses them"},
	"sim": {[]string{"*"}, "drives every part"}, "internal/nodetest": {[]string{"*"}, "starts whole nodes for tests"},
	"internal/dialogue": {[]string{"edge/overhop", "internal"}, "speaks Overhop's wire with whoever is under test"},
	"internal/scenario": {[]string{"job", "cluster", "edge/overhop", "internal"}, "asks a yard as a client does"}, "internal/scenario/sequential": {nil, "stands on the contract's text alone"},
	"internal/recount": {nil, "stands on the contract's text alone, to be held against ours"},
	"internal/arch":    {nil, "looks at files only"}, "internal/docs": {[]string{"job"}, "computes what the documents publish"}, "internal/deps": {nil, "holds modules until their rooms do"},
}

// Each dependency lives in one room, so that it can be understood, replaced
// and upgraded there. Packages that measure or test it bare are named too.
var dependencies = map[string]struct {
	rooms []string
	why   string
}{
	"github.com/nats-io/":            {[]string{"cluster", "client", "bench", "drill", "backup"}, "messages are the cluster's; a user's client dials it, benchmarks measure it bare"},
	"github.com/hashicorp/raft":      {[]string{"consensus", "bench"}, "agreement is consensus'; benchmarks measure it bare"},
	"github.com/hashicorp/go-":       {[]string{"consensus", "bench"}, "what comes along with raft stays with it"},
	"go.etcd.io/bbolt":               {[]string{"consensus", "bench"}, "the log store is consensus'; benchmarks measure it bare"},
	"github.com/vmihailenco/msgpack": {[]string{"edge/overhop", "consensus"}, "it is Overhop's wire and the log's bytes; all else is JSON for people to read"},
	"github.com/spf13/":              {[]string{"cli", "cmd"}, "flags end where the command line ends"},
	"github.com/tidwall/btree":       {[]string{"ledger"}, "copy-on-write trees are the ledger's"},
	"github.com/robfig/cron":         {[]string{"scheduler"}, "what an expression comes to is the authority's to say"},
	"github.com/prometheus/":         {[]string{"web"}, "metrics are shown by the HTTP door, rooms count in plain numbers"},
	"go.opentelemetry.io/":           {[]string{"tracing"}, "spans are made in one place, and rooms run without them"},
	"github.com/BurntSushi/toml":     {[]string{"node", "cli", "cmd"}, "rooms get structs, not files"},
	"github.com/anishathalye/":       {[]string{"drill/check"}, "whether some order explains all answers is the checkers' to find"},
	"github.com/google/go-cmp":       {nil, "tests only"},
	"pgregory.net/rapid":             {nil, "tests only"},
	"github.com/VictoriaMetrics/":    {nil, "tests only: reads the expressions of alerts and dashboards"},
	"go.yaml.in/yaml":                {nil, "tests only: reads the alerts"},
	"testing":                        {[]string{"internal/testlog", "internal/netfault", "internal/nodetest"}, "tests only"},
	module + "/internal/testlog":     {[]string{"internal/nodetest"}, "tests only"},
	module + "/internal/netfault":    {[]string{"internal/nodetest"}, "tests only"},
	module + "/internal/nodetest":    {nil, "tests only"},
	module + "/internal/recount":     {[]string{"drill", "sim"}, "tests and drills hold the ledger against it"},
	module + "/internal/dialogue":    {nil, "tests only"},
	module + "/internal/scenario":    {nil, "tests only"},
}

// The pure packages: replay must never ask a clock, roll dice, or wait. Of the
// protocols, the files that hold a connection are exempt.
var pure = map[string][]string{
	"job": nil, "ledger": nil, "cluster/wire": nil,
	"edge/overhop":   {"client.go", "calls.go", "await.go", "doors.go", "inhand.go", "line.go", "producer.go", "watch.go", "worker.go"},
	"runnerpool/rrq": {"conn.go", "serve.go"},
}

var impure = map[string]string{
	"context": "waits for somebody", "log": "talks", "log/slog": "talks", "math/rand": "rolls dice", "math/rand/v2": "rolls dice",
	"crypto/rand": "rolls dice", "sync": "shares with a goroutine", "net": "does input and output", "os": "does input and output",
}

var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

// emptyNames say nothing about what a file or package holds.
var emptyNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "manager", "service"}

const (
	maxFileLines     = 500
	maxFunctionLines = 80
	docFileLines     = 15
)

// source is one Go file of the house.
type source struct {
	pkg, name string // package path below the module, file name
	test      bool
	lines     int
	file      *ast.File
	fset      *token.FileSet
}

func (s *source) path() string { return path.Join(s.pkg, s.name) }

func (s *source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, `"`))
	}
	return paths
}

// house reads every Go file of the module.
func house(t *testing.T) []source {
	t.Helper()
	var files []source
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() && name != root && (base[0] == '.' || base == "testdata" || base == "bin" || base == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(base, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		below, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		s := source{
			pkg: filepath.ToSlash(below), name: base, test: strings.HasSuffix(base, "_test.go"),
			lines: strings.Count(string(text), "\n"), fset: token.NewFileSet(),
		}
		s.file, err = parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		files = append(files, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("only %d files found: is this the house?", len(files))
	}
	return files
}

// within tells that a package is one of rooms or lies below one.
func within(pkg string, rooms []string) bool {
	for _, room := range rooms {
		if room == "*" || pkg == room || strings.HasPrefix(pkg, room+"/") {
			return true
		}
	}
	return false
}

// floorOf finds the longest key of floors that covers a package.
func floorOf(pkg string) string {
	for key := pkg; key != "."; key = path.Dir(key) {
		if _, ok := floors[key]; ok {
			return key
		}
	}
	return ""
}

// TestFloorOf makes sure that the plan itself is read right.
func TestFloorOf(t *testing.T) {
	for pkg, want := range map[string]string{
		"job": "job", "edge": "edge", "edge/overhop": "edge/overhop", "cluster/wire": "cluster", "cmd/node": "cmd",
		"internal/frame": "internal", "internal/arch": "internal/arch", "nowhere": "", "jobs": "",
	} {
		if got := floorOf(pkg); got != want {
			t.Errorf("%s stands on %q, want %q", pkg, got, want)
		}
	}
	for _, room := range []string{"consensus", "cluster", "scheduler", "agent", "edge", "runnerpool", "tracing", "board"} {
		for _, other := range []string{"consensus", "cluster", "scheduler", "agent", "edge", "runnerpool", "tracing", "node", "cli"} {
			if room != other && within(other, floors[room].may) {
				t.Errorf("the plan lets %s import %s", room, other)
			}
		}
	}
}

func TestFloors(t *testing.T) {
	for _, s := range house(t) {
		floor := floorOf(s.pkg)
		if floor == "" {
			t.Errorf("%s: package %s has no place in the plan; give it one in floors", s.path(), s.pkg)
			continue
		}
		for _, imported := range s.imports() {
			other, ours := strings.CutPrefix(imported, module+"/")
			if !ours || s.test && within(other, []string{"internal"}) {
				continue
			}
			if floorOf(other) == floor || strings.HasPrefix(other, floor+"/") || within(other, floors[floor].may) {
				continue
			}
			t.Errorf("%s imports %s: %s", s.path(), imported, floors[floor].why)
		}
	}
}

func TestDependencies(t *testing.T) {
	for _, s := range house(t) {
		if s.test || s.pkg == "internal/deps" {
			continue
		}
		for _, imported := range s.imports() {
			for dependency, rule := range dependencies {
				if !strings.HasPrefix(imported, dependency) || dependency == "testing" && imported != dependency {
					continue
				}
				if !within(s.pkg, rule.rooms) {
					t.Errorf("%s imports %s, which lives in %v: %s", s.path(), imported, rule.rooms, rule.why)
				}
			}
		}
	}
}

func TestPure(t *testing.T) {
	for _, s := range house(t) {
		talks, ok := pure[s.pkg]
		if !ok || s.test || within(s.name, talks) {
			continue
		}
		for _, imported := range s.imports() {
			if why, bad := impure[imported]; bad {
				t.Errorf("%s imports %s, which %s; this package is pure", s.path(), imported, why)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine; this package is pure", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && within(n.Sel.Name, clocks) {
					t.Errorf("%s reads the clock; pure code takes the time as a value", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func TestNames(t *testing.T) {
	for _, s := range house(t) {
		for _, name := range []string{strings.TrimSuffix(strings.TrimSuffix(s.name, ".go"), "_test"), path.Base(s.pkg)} {
			if within(name, emptyNames) {
				t.Errorf("%s: %q says nothing about what it holds", s.path(), name)
			}
		}
	}
}

func TestSizes(t *testing.T) {
	for _, s := range house(t) {
		if s.test {
			continue
		}
		if s.lines > maxFileLines {
			t.Errorf("%s has %d lines, at most %d: a file that long is read by nobody", s.path(), s.lines, maxFileLines)
		}
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1; n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, at most %d", s.path(), f.Name.Name, n, maxFunctionLines)
			}
		}
	}
}

// TestPackageComments: every package says once what it is for, in doc.go if it
// has more to say than fits above its main file.
func TestPackageComments(t *testing.T) {
	comments, packages := make(map[string][]string), make(map[string]bool)
	for _, s := range house(t) {
		if s.test && !within(s.pkg, []string{"internal/arch", "internal/docs"}) {
			continue
		}
		packages[s.pkg] = true
		if s.file.Doc == nil {
			continue
		}
		comments[s.pkg] = append(comments[s.pkg], s.name)
		from, to := s.fset.Position(s.file.Doc.Pos()).Line, s.fset.Position(s.file.Doc.End()).Line
		if to-from+1 > docFileLines && s.name != "doc.go" {
			t.Errorf("%s: a package comment of %d lines goes to doc.go", s.path(), to-from+1)
		}
	}
	for pkg := range packages {
		if n := len(comments[pkg]); n != 1 {
			t.Errorf("package %s has %d package comments %v, want one", pkg, n, comments[pkg])
		}
	}
}
