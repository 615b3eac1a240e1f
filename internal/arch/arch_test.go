// Package arch enforces the architecture of the module: which package may import
// which, which package may use which dependency, and what pure packages may not
// do. It has only tests.
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

const module = "github.com/yardmaster-dev/yardmaster"

// layers lists the packages of the module that a package may import, and the
// reason of the rule. An entry covers the packages below its key, unless they have
// an entry of their own; "*" allows all packages. No entry allows product packages
// to import packages below test: see testTree.
var layers = map[string]struct {
	imports []string
	reason  string
}{
	"job":                 {[]string{"internal/duration", "internal/similar"}, "the domain types depend on nothing, except on how durations are written and misspelt names found"},
	"ledger":              {[]string{"job", "internal/duration"}, "the ledger is pure: it depends on the domain types, and on how durations are written"},
	"api":                 {[]string{"job", "ledger"}, "the public contract is data only: it depends on the domain types, and on the ledger for the runtime contract's snapshot"},
	"timeline":            {nil, "it checks the ledger, so it shares no code with it"},
	"chronicle":           {[]string{"job", "ledger", "api", "cluster", "timeline", "internal"}, "rebuilds states from the streams, and compares them with the ledger; node passes both"},
	"index/query":         {[]string{"job", "internal/duration", "internal/similar"}, "a query is evaluated on documents, wherever they are"},
	"index/series":        {[]string{"job", "ledger"}, "counts the transitions of the ledger; its user keeps and shows them"},
	"index":               {[]string{"job", "ledger", "api", "index/query", "index/segment", "internal/crash", "internal/duration", "internal/durable"}, "the index follows the ledger, and answers by itself"},
	"index/segment":       {[]string{"job", "index/query", "internal/crash"}, "a segment stores documents and finds them, wherever they come from"},
	"consensus":           {[]string{"job", "ledger", "internal"}, "subsystems do not import each other: consensus replicates entries and does not interpret them"},
	"cluster":             {[]string{"job", "ledger", "api", "internal"}, "subsystems do not import each other: cluster transports messages for all of them"},
	"cluster/wire":        {[]string{"job", "internal"}, "messages between nodes hold domain types only"},
	"cluster/subjects":    {[]string{"job", "api"}, "names depend on the types that they name only"},
	"cluster/embedded":    {[]string{"job", "api", "cluster/subjects", "internal"}, "the embedded server knows no streams"},
	"cluster/streams":     {[]string{"job", "cluster/subjects", "cluster/embedded", "internal"}, "streams are below what publishes jobs to them and moves them"},
	"cluster/lanes":       {[]string{"job", "cluster/subjects", "cluster/embedded", "cluster/streams", "internal"}, "lanes publishes jobs, wherever the lanes' leaders are"},
	"cluster/replication": {[]string{"cluster/subjects", "cluster/embedded", "cluster/streams", "cluster/lanes", "internal"}, "replication tells lanes which leaders move; it reads no ledger"},
	"scheduler":           {[]string{"job", "ledger", "api", "internal"}, "subsystems do not import each other: the scheduler declares interfaces, and node implements them; what the API shows of it has the API's types"},
	"agent":               {[]string{"job", "internal"}, "subsystems do not import each other, and the agent does not read the ledger"},
	"edge":                {[]string{"job", "api", "internal"}, "subsystems do not import each other, and the edge does not read the ledger; its status has the API's types"},
	"edge/overhop":        {[]string{"internal"}, "a protocol package defines wire types only"},
	"runnerpool":          {[]string{"job", "api", "internal"}, "subsystems do not import each other, and a pool does not read the ledger; its status has the API's types"},
	"runnerpool/rrq":      {[]string{"internal"}, "a protocol package defines wire types only"},
	"tracing":             {[]string{"job", "internal"}, "subsystems do not import each other: node passes dispatches to tracing"},
	"client":              {[]string{"job", "api", "edge/overhop", "runnerpool/rrq", "internal"}, "programs of users must not link a node"},
	"client/outbox":       {[]string{"client"}, "writes and sends jobs as any user of package client could"},
	"client/sqlfence":     {nil, "needs a number from package client and nothing else"},
	"examples":            {[]string{"client", "edge/overhop", "runnerpool/rrq"}, "an example uses only what users have: the protocols and the client"},
	"diagnose":            {[]string{"job", "ledger", "api", "cluster", "scheduler", "internal/crash", "internal/duration"}, "a diagnosis asks the scheduler, and reads records and history, in their types; node passes everything else"},
	"health":              {[]string{"job", "ledger", "api", "cluster", "consensus", "scheduler", "internal"}, "health reports the state of the other parts of a node in their types; node passes the parts"},
	"backup":              {[]string{"job", "ledger", "api", "cluster", "internal"}, "backup saves and restores the streams of cluster; what it needs of other subsystems it declares as functions"},
	"board":               {[]string{"internal"}, "node defines the content and the storage of boards"},
	"web":                 {[]string{"job", "ledger", "api", "internal"}, "web serves HTTP only: node passes the handlers"},
	"web/console":         {[]string{"job", "ledger", "api", "index/query", "web", "internal"}, "the console shows what the endpoints reply: node passes what sends its requests"},
	"web/console/acts":    {[]string{"job", "api", "web", "web/console", "internal"}, "carries out what forms ask for through the endpoints"},
	"web/console/calls":   {[]string{"api", "web/console/session"}, "sends requests of users"},
	"web/console/draw":    {nil, "draws numbers"},
	"web/console/format":  {[]string{"api", "internal/duration"}, "writes values for people"},
	"web/console/pages":   {[]string{"job", "ledger", "api", "index/query", "web", "web/console", "internal/crash"}, "loads what pages show from the endpoints"},
	"web/console/session": {[]string{"api", "internal/crash"}, "signs users in"},
	"web/console/tail":    {[]string{"ledger/history", "internal/crash"}, "keeps the latest events"},
	"membership":          {[]string{"job", "ledger", "api", "consensus", "cluster", "internal"}, "membership keeps Raft and NATS in step, so it uses both; what it needs of other subsystems it declares as interfaces"},
	"server":              {[]string{"job", "ledger", "api", "cluster", "consensus", "scheduler", "index/query", "internal"}, "server answers requests: it reads the ledger and the streams, and asks the authority; node passes it what it needs of the other subsystems"},
	"node":                {[]string{"job", "ledger", "api", "server", "membership", "consensus", "cluster", "scheduler", "agent", "edge", "runnerpool", "tracing", "board", "web", "health", "diagnose", "backup", "chronicle", "index", "internal"}, "node connects all subsystems, imports nothing above them and contains no feature"},
	"internal":            {nil, "internal packages are shared by all layers and depend on none"},

	"scheduler/cronspec":  {[]string{"job", "ledger", "internal/duration", "internal/zoneinfo"}, "cron entries are checked without a scheduler"},
	"scheduler/waitlist":  {[]string{"job", "ledger"}, "merging lists is an algorithm without state"},
	"scheduler/outbox":    {[]string{"job", "ledger", "api", "internal"}, "publishing is a part of the scheduler that does not know the others"},
	"node/config":         {[]string{"job", "ledger", "api", "cluster", "scheduler", "edge", "runnerpool", "health", "internal"}, "the configuration has the types of the parts that it configures, and starts none of them"},
	"server/worker":       {[]string{"job", "ledger", "api", "server", "cluster", "edge", "internal"}, "implements the interface that edge declares"},
	"server/overview":     {[]string{"job", "ledger", "api", "server", "index/series", "internal/crash", "internal/duration"}, "reads what a series has counted, and the ledger; node passes the status"},
	"server/httproutes":   {[]string{"api", "server", "cluster", "web", "internal/duration"}, "makes routes of package web of the endpoints"},
	"server/consolecalls": {[]string{"api", "ledger", "cluster", "web/console", "internal/crash"}, "sends the requests of the console to the endpoints"},
	"server/boards":       {[]string{"job", "ledger", "api", "board", "cluster", "consensus", "scheduler", "health"}, "defines the content of the boards, which shows the other parts of a node"},
	"health/metrics":      {[]string{"job", "ledger", "api", "cluster", "consensus", "scheduler", "health", "web", "internal"}, "reads what the other parts of a node have counted; node passes the parts"},
	"agent/observe":       {[]string{"job", "agent", "edge", "runnerpool", "tracing", "web", "internal/crash"}, "wraps the agent and its targets for each other, to measure and trace what passes"},

	"health/consistency": {[]string{"job", "ledger", "api", "internal"}, "the check compares ledgers; node passes the requests to other members"},

	"cli/statedir":      {[]string{"ledger"}, "a state directory is used without a yard"},
	"cli/usererror":     {[]string{"job", "ledger", "api", "cluster", "internal/duration", "internal/similar"}, "explains the errors of requests; it knows no verb"},
	"cli/connect":       {[]string{"job", "api", "cluster", "cli/usererror", "cli/durationflag", "internal/duration"}, "connects to a yard; it knows no verb"},
	"cli/durationflag":  {[]string{"internal/duration"}, "adds flags; it knows no verb"},
	"cli/retentionflag": {[]string{"api", "job", "internal/duration"}, "parses settings; it knows no verb"},
	"cli/faults":        {[]string{"job", "cli/command"}, "writes errors of jobs; it knows no verb"},
	"cli/command":       {[]string{"cli/connect", "cli/usererror"}, "what verbs have in common; it knows no verb"},
	"cli":               {[]string{"*"}, "commands may use any package"}, "cmd": {[]string{"*"}, "main may use any package"},
	"internal/memyard": {[]string{"job", "ledger", "cluster", "consensus", "scheduler", "agent", "server", "internal"}, "connects the core of a yard in memory, as node does"},
	"client/yardtest":  {[]string{"job", "ledger", "api", "server", "cluster", "scheduler", "agent", "edge", "diagnose", "client", "internal"}, "connects the parts of a node in memory, for tests of users, as node does"},

	"test/testnet":    {[]string{"internal"}, "finds addresses for tests of any layer"},
	"test/fakeledger": {[]string{"job", "ledger", "index/query"}, "applies commands without a Raft group, and finds jobs without an index, for tests of what reads the ledger"},
	"internal/procs":  {[]string{"api", "cluster", "internal"}, "starts nodes as processes and asks for their status"},

	"test":             {[]string{"*"}, "what proves the product drives every layer of it"},
	"test/drill/check": {nil, "the checkers share no code with what they check"}, "test/drill/hosts": {nil, "virtual hosts and networks do not depend on their use"},
	"test/wirescript":   {[]string{"edge/overhop", "internal"}, "plays scripts of the Overhop protocol against any implementation"},
	"test/runnerscript": {[]string{"job", "api", "cluster", "edge/overhop", "internal"}, "uses a yard like a client"}, "test/runnerscript/sequential": {nil, "implements the contract independently"},
	"test/contractcheck": {nil, "implements the contract independently, to be compared with the ledger"},
	"internal/arch":      {nil, "reads source files only"}, "internal/docs": {[]string{"job"}, "computes values that documents publish"}, "internal/deps": {nil, "keeps modules in go.mod that no package imports yet"},
}

// testTree contains what proves the product: harnesses, drills, benchmarks, the
// simulation and their commands. Only packages in it, and test files, may import it,
// so that the product's binary links no fault injection and no benchmark.
const testTree = "test"

// dependencies lists the packages that may import a dependency, by prefix of its
// import path, and the reason. Each dependency is limited to one package, so that
// it can be understood, replaced and upgraded there, and to those that benchmark
// or test it directly. Test files are exempt.
var dependencies = map[string]struct {
	packages []string
	reason   string
}{
	"github.com/nats-io/":            {[]string{"cluster", "client", "backup", "test"}, "cluster wraps NATS; clients dial it, benchmarks measure it directly"},
	"github.com/hashicorp/raft":      {[]string{"consensus", "test"}, "consensus wraps Raft; benchmarks measure it directly"},
	"github.com/hashicorp/go-":       {[]string{"consensus", "test"}, "only raft uses these modules"},
	"go.etcd.io/bbolt":               {[]string{"consensus", "test"}, "consensus owns the log store; benchmarks measure it directly"},
	"github.com/vmihailenco/msgpack": {[]string{"edge/overhop"}, "MessagePack is used for the Overhop protocol, and by structpack, without the library, for the Raft log and messages between nodes; everything else is JSON, which people can read"},
	"github.com/spf13/":              {[]string{"cli", "cmd", "test/cmd", "test/benchpeers"}, "only command lines parse flags"},
	"charm.land/":                    {[]string{"cli/top"}, "only top draws on terminals"},
	"github.com/charmbracelet/":      {[]string{"cli/top", "cli/command"}, "only top draws on terminals; tables fit their width"},
	"github.com/creack/pty":          {nil, "tests only"},
	"github.com/KimMachineGun/":      {[]string{"cli/run"}, "only the command line sets the memory limit of a node"},
	"github.com/tidwall/btree":       {[]string{"ledger"}, "only the ledger uses copy-on-write trees"},
	"github.com/santhosh-tekuri/":    {[]string{"internal/payloadschema"}, "only payloadschema evaluates JSON Schemas, within bounds"},
	"github.com/prometheus/":         {[]string{"web"}, "web exports metrics; the other packages count in plain numbers"},
	"go.opentelemetry.io/":           {[]string{"tracing"}, "only tracing creates spans; the other packages work without it"},
	"github.com/BurntSushi/toml":     {[]string{"node/config", "cli", "cmd"}, "the other packages get structs, not files"},
	"github.com/jackc/pgx":           {[]string{"test"}, "the application chooses its driver; only modules of tests have one"},
	"modernc.org/":                   {[]string{"test", "examples/sort"}, "the application chooses its driver; only modules of tests and examples have one"},
	"github.com/anishathalye/":       {[]string{"test/drill/check"}, "only the checkers of drills check linearizability"},
	"github.com/google/go-cmp":       {nil, "tests only"},
	"pgregory.net/rapid":             {nil, "tests only"},
	"github.com/VictoriaMetrics/":    {nil, "tests only: parses the expressions of alerts and dashboards"},
	"go.yaml.in/yaml":                {nil, "tests only: parses the alerts"},
	"testing":                        {[]string{"test", "client/yardtest"}, "tests only"},
	module + "/client/yardtest":      {nil, "tests only"},
	module + "/internal/memyard":     {[]string{"client/yardtest", "test"}, "tests only"},
	module + "/internal/procs":       {[]string{"cli/demo", "test"}, "only the demo and tests start nodes as processes"},
	module + "/test/clustertest":     {nil, "tests only"},
	module + "/test/wirescript":      {nil, "tests only"},
	module + "/test/runnerscript":    {nil, "tests only"},
}

// plain lists the packages that import nothing but the standard library and packages of
// this module, and the reason.
var plain = map[string]string{
	"client/outbox":   "it works with the driver that the application has",
	"client/sqlfence": "it works with the driver that the application has",
}

// pure lists the pure packages, which must be replayable: they may not read a
// clock, use random numbers, or block. The files of a protocol package that handle
// connections or jobs are exempt, and those that keep what they have computed or allocated; they
// are listed.
var pure = map[string][]string{
	"job": nil, "ledger": nil, "ledger/history": nil, "api": nil, "cluster/wire": nil, "internal/duration": nil, "internal/similar": nil, "index/query": nil, "index/series": nil, "timeline": nil,
	"edge/overhop":   {"client.go", "pipeline.go", "calls.go", "dialer.go", "misconfigured.go", "activejob.go", "ack.go", "reports.go", "workerconn.go", "producer.go", "worker.go", "leasewatch.go", "jobcontext.go", "runners.go", "structfields.go", "reuse.go"},
	"runnerpool/rrq": {"conn.go", "serve.go"},
}

// impure lists the packages that pure packages may not import, with the reason.
var impure = map[string]string{
	"context": "is for blocking calls", "log": "does output", "log/slog": "does output", "math/rand": "is not deterministic", "math/rand/v2": "is not deterministic",
	"crypto/rand": "is not deterministic", "sync": "is for goroutines", "net": "does input and output", "os": "does input and output",
}

// clocks lists the functions of package time that pure packages may not call.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

// vagueNames lists names of files and packages that do not describe their content.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "types", "misc", "manager", "service"}

const (
	maxFileLines     = 500
	maxFunctionLines = 80
	docFileLines     = 15
)

// source is one Go file of the module.
type source struct {
	pkg, name string // package path below the module, file name
	test      bool
	lines     int
	file      *ast.File
	fset      *token.FileSet
}

func (s *source) path() string { return path.Join(s.pkg, s.name) }

// imports returns the import paths of the file.
func (s *source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, `"`))
	}
	return paths
}

// moduleSources reads every Go file of the module.
func moduleSources(t *testing.T) []source {
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
		t.Fatalf("only %d Go files found below %s: is this the root of the module?", len(files), root)
	}
	return files
}

// inPackages reports whether pkg is one of pkgs or below one. "*" matches all.
func inPackages(pkg string, pkgs []string) bool {
	for _, p := range pkgs {
		if p == "*" || pkg == p || strings.HasPrefix(pkg, p+"/") {
			return true
		}
	}
	return false
}

// layerOf returns the longest key of layers that covers a package, or "".
func layerOf(pkg string) string {
	for key := pkg; key != "."; key = path.Dir(key) {
		if _, ok := layers[key]; ok {
			return key
		}
	}
	return ""
}

// TestLayerOf checks layerOf, and that layers does not let subsystems import each
// other.
func TestLayerOf(t *testing.T) {
	for pkg, want := range map[string]string{
		"job": "job", "edge": "edge", "edge/overhop": "edge/overhop", "cluster/wire": "cluster/wire", "cmd/node": "cmd",
		"internal/frame": "internal", "internal/arch": "internal/arch", "test/drill/catalogue": "test", "nowhere": "", "jobs": "",
	} {
		if got := layerOf(pkg); got != want {
			t.Errorf("layer of %s is %q, want %q", pkg, got, want)
		}
	}
	for _, pkg := range []string{"consensus", "cluster", "scheduler", "agent", "edge", "runnerpool", "tracing", "board"} {
		for _, other := range []string{"consensus", "cluster", "scheduler", "agent", "edge", "runnerpool", "tracing", "node", "cli"} {
			if pkg != other && inPackages(other, layers[pkg].imports) {
				t.Errorf("layers lets %s import %s", pkg, other)
			}
		}
	}
}

// TestLayers checks the imports within the module against layers and testTree. Test
// files may also import internal packages, timeline, and those of testTree.
func TestLayers(t *testing.T) {
	for _, s := range moduleSources(t) {
		layer := layerOf(s.pkg)
		if layer == "" {
			t.Errorf("%s: package %s has no layer; add it to layers", s.path(), s.pkg)
			continue
		}
		for _, imported := range s.imports() {
			other, ours := strings.CutPrefix(imported, module+"/")
			if !ours || s.test && inPackages(other, []string{"internal", "timeline", testTree}) {
				continue
			}
			if inPackages(other, []string{testTree}) && !inPackages(s.pkg, []string{testTree}) {
				t.Errorf("%s must not import %s: no product package may import what tests it", s.path(), imported)
				continue
			}
			if layerOf(other) == layer || strings.HasPrefix(other, layer+"/") || inPackages(other, layers[layer].imports) {
				continue
			}
			t.Errorf("%s must not import %s: %s", s.path(), imported, layers[layer].reason)
		}
	}
}

// TestDependencies checks the imports of product files against dependencies.
func TestDependencies(t *testing.T) {
	for _, s := range moduleSources(t) {
		if s.test || s.pkg == "internal/deps" {
			continue
		}
		for _, imported := range s.imports() {
			for dependency, rule := range dependencies {
				if !strings.HasPrefix(imported, dependency) || dependency == "testing" && imported != dependency {
					continue
				}
				if !inPackages(s.pkg, rule.packages) {
					t.Errorf("%s imports %s, which only %v may import: %s", s.path(), imported, rule.packages, rule.reason)
				}
			}
		}
	}
}

// TestPlain checks the imports of plain packages.
func TestPlain(t *testing.T) {
	for _, s := range moduleSources(t) {
		reason, ok := plain[s.pkg]
		for _, imported := range s.imports() {
			first, _, _ := strings.Cut(imported, "/")
			if ok && strings.Contains(first, ".") && !strings.HasPrefix(imported, module+"/") {
				t.Errorf("%s must not import %s: %s", s.path(), imported, reason)
			}
		}
	}
}

// TestPure checks that pure packages have no side effects.
func TestPure(t *testing.T) {
	for _, s := range moduleSources(t) {
		exempt, ok := pure[s.pkg]
		if !ok || s.test || inPackages(s.name, exempt) {
			continue
		}
		for _, imported := range s.imports() {
			if reason, bad := impure[imported]; bad {
				t.Errorf("%s imports %s, which %s; this package is pure", s.path(), imported, reason)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine; this package is pure", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && inPackages(n.Sel.Name, clocks) {
					t.Errorf("%s reads the clock; pure code takes the time as a value", s.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// TestNames checks that the names of files and packages describe their content.
func TestNames(t *testing.T) {
	for _, s := range moduleSources(t) {
		for _, name := range []string{strings.TrimSuffix(strings.TrimSuffix(s.name, ".go"), "_test"), path.Base(s.pkg)} {
			if inPackages(name, vagueNames) {
				t.Errorf("%s: the name %q does not describe the content", s.path(), name)
			}
		}
	}
}

// TestSizes checks the length of files and functions.
func TestSizes(t *testing.T) {
	for _, s := range moduleSources(t) {
		if s.test {
			continue
		}
		if s.lines > maxFileLines {
			t.Errorf("%s has %d lines, at most %d: split it", s.path(), s.lines, maxFileLines)
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

// TestPackageComments checks that every package has exactly one package comment,
// and that a long one is in doc.go.
func TestPackageComments(t *testing.T) {
	comments, packages := make(map[string][]string), make(map[string]bool)
	for _, s := range moduleSources(t) {
		if s.test && !inPackages(s.pkg, []string{"internal/arch", "internal/docs"}) {
			continue
		}
		packages[s.pkg] = true
		if s.file.Doc == nil {
			continue
		}
		comments[s.pkg] = append(comments[s.pkg], s.name)
		from, to := s.fset.Position(s.file.Doc.Pos()).Line, s.fset.Position(s.file.Doc.End()).Line
		if to-from+1 > docFileLines && s.name != "doc.go" {
			t.Errorf("%s: move the package comment of %d lines to doc.go", s.path(), to-from+1)
		}
	}
	for pkg := range packages {
		if n := len(comments[pkg]); n != 1 {
			t.Errorf("package %s has %d package comments %v, want one", pkg, n, comments[pkg])
		}
	}
}
