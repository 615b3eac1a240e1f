package node

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	"go.yaml.in/yaml/v3"
)

// scrapedMetrics are the labels of a node's metrics with the values that they have had.
type scrapedMetrics map[string]map[string][]string

var sampleLine = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? \S+$`)

func parseMetrics(said string) scrapedMetrics {
	s := scrapedMetrics{}
	for _, m := range sampleLine.FindAllStringSubmatch(said, -1) {
		if s[m[1]] == nil {
			s[m[1]] = map[string][]string{}
		}
		for _, l := range regexp.MustCompile(`([a-z_]+)="([^"]*)"`).FindAllStringSubmatch(m[2], -1) {
			s[m[1]][l[1]] = append(s[m[1]][l[1]], l[2])
		}
	}
	return s
}

// scrapeLabels are labels that Prometheus adds to every series.
var scrapeLabels = []string{"job", "instance"}

// rangeFunctions are the functions in use whose argument is a range, and otherFunctions the
// rest. Check a new function before adding it: the parser also accepts functions that
// Prometheus does not have.
var (
	rangeFunctions = []string{"rate", "increase", "max_over_time", "min_over_time"}
	otherFunctions = []string{"time", "histogram_quantile", "absent"}
)

// check finds errors in an expression: invalid PromQL, metrics that are not served, labels
// that do not exist. labels are those that its result may have.
func (s scrapedMetrics) check(expr string) (labels, wrong []string) {
	e, err := metricsql.Parse(expr)
	if err != nil {
		return nil, []string{err.Error()}
	}
	labels = slices.Clone(scrapeLabels)
	var named []string
	ranged := map[metricsql.Expr]bool{}
	metricsql.VisitAll(e, func(e metricsql.Expr) {
		switch e := e.(type) {
		case *metricsql.MetricExpr:
			has, problems := s.series(e)
			for name := range has {
				labels = append(labels, name)
			}
			wrong = append(wrong, problems...)
		case *metricsql.AggrFuncExpr:
			named = append(named, e.Modifier.Args...)
		case *metricsql.BinaryOpExpr:
			named = append(named, e.GroupModifier.Args...)
		case *metricsql.RollupExpr:
			if e.Window != nil {
				ranged[e] = true
			}
		case *metricsql.FuncExpr:
			switch {
			case slices.Contains(rangeFunctions, e.Name):
				if !ranged[e.Args[0]] { // visited before
					wrong = append(wrong, e.Name+" of what is no range")
				}
			case !slices.Contains(otherFunctions, e.Name):
				wrong = append(wrong, e.Name+" is no function that is looked up")
			}
		}
	})
	for _, name := range named {
		if !slices.Contains(labels, name) {
			wrong = append(wrong, "nothing has the label "+name)
		}
	}
	return labels, wrong
}

func (s scrapedMetrics) series(e *metricsql.MetricExpr) (has map[string][]string, wrong []string) {
	if len(e.LabelFilterss) != 1 || e.LabelFilterss[0][0].Label != "__name__" {
		return nil, []string{string(e.AppendString(nil)) + " names no metric"}
	}
	name := e.LabelFilterss[0][0].Value
	has, ok := s[name]
	if !ok {
		return nil, []string{name + " is not served"}
	}
	for _, f := range e.LabelFilterss[0][1:] {
		if slices.Contains(scrapeLabels, f.Label) {
			continue
		}
		one := regexp.QuoteMeta(f.Value)
		if f.IsRegexp {
			one = f.Value
		}
		matches, err := regexp.Compile("^(?:" + one + ")$")
		if err != nil || !slices.ContainsFunc(has[f.Label], matches.MatchString) {
			wrong = append(wrong, name+" has never "+f.Label+" "+f.Value)
		}
	}
	return has, wrong
}

var labelRef = regexp.MustCompile(`\{\{ *(?:\$labels\.)?([a-z_]+) *\}\}`)

// checkAlerts checks the alert rules against the metrics that a node serves.
func checkAlerts(t *testing.T, s scrapedMetrics) {
	text, err := os.ReadFile("../deploy/observability/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	known := yaml.NewDecoder(strings.NewReader(string(text)))
	known.KnownFields(true)
	if err := known.Decode(&file); err != nil || len(file.Groups) != 1 || len(file.Groups[0].Rules) < 10 {
		t.Fatalf("%d groups, %v", len(file.Groups), err)
	}
	for _, r := range file.Groups[0].Rules {
		labels, wrong := s.check(r.Expr)
		for _, w := range wrong {
			t.Errorf("%s: %s", r.Alert, w)
		}
		if r.For != "" && !regexp.MustCompile(`^\d+[smh]$`).MatchString(r.For) {
			t.Errorf("%s: for %q", r.Alert, r.For)
		}
		if !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" || len(r.Annotations["description"]) < 40 {
			t.Errorf("%s lacks a summary, or a description with the remedy", r.Alert)
		}
		for _, m := range labelRef.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
			if !slices.Contains(labels, m[1]) {
				t.Errorf("%s refers to label %s, which it does not have", r.Alert, m[1])
			}
		}
	}
}

// The alerts fire when they should, by the tests beside them. The test is skipped without
// promtool: only Prometheus evaluates these expressions as Prometheus does, and as a Go
// module it requires the SDKs of several clouds. Their syntax, metrics and labels are checked
// everywhere, by checkAlerts.
func TestAlerts_Promtool(t *testing.T) {
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool, of Prometheus, is not installed")
	}
	if out, err := exec.Command(tool, "test", "rules", "../deploy/observability/alerts_test.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// checkDashboard checks the dashboard against the metrics that a node serves.
func checkDashboard(t *testing.T, s scrapedMetrics) {
	text, err := os.ReadFile("../deploy/observability/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title  string `json:"title"`
		Panels []struct {
			ID         int    `json:"id"`
			Type       string `json:"type"`
			Title      string `json:"title"`
			Datasource struct{ UID string }
			GridPos    struct{ H, W, X, Y int } `json:"gridPos"`
			Targets    []struct {
				Expr         string `json:"expr"`
				LegendFormat string `json:"legendFormat"`
				Datasource   struct{ UID string }
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &board); err != nil || board.Title == "" || len(board.Panels) < 20 {
		t.Fatalf("%d panels, %v", len(board.Panels), err)
	}
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H == 0 {
			t.Errorf("%s: id %d at %+v", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		if p.Type != "row" && (len(p.Targets) == 0 || p.Datasource.UID != "${datasource}") {
			t.Errorf("%s has no query, or a fixed data source", p.Title)
		}
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*").Replace(target.Expr)
			labels, wrong := s.check(expr)
			for _, w := range wrong {
				t.Errorf("%s: %s", p.Title, w)
			}
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("%s has a fixed data source", p.Title)
			}
			for _, m := range labelRef.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(labels, m[1]) {
					t.Errorf("%s refers to label %s, which it does not have", p.Title, m[1])
				}
			}
		}
	}
}

// The check finds errors.
func TestScrapedMetrics_Check(t *testing.T) {
	s := parseMetrics("yard_a 1\nyard_b{queue=\"mail\",state=\"active\"} 2\nyard_c_bucket{le=\"0.5\"} 1\n")
	for expr, want := range map[string]string{
		`yard_a > 0 and yard_b`:                                          "",
		`sum by (queue, job) (yard_b{state="active"}) / 2`:               "",
		`histogram_quantile(0.9, sum by (le) (rate(yard_c_bucket[5m])))`: "",
		`yard_z`:                         "yard_z is not served",
		`yard_b{state="odd"}`:            "yard_b has never state odd",
		`yard_b{state=~"act.*|odd"}`:     "",
		`yard_a{queue="mail"}`:           "yard_a has never queue mail",
		`sum by (lane) (yard_b)`:         "nothing has the label lane",
		`rate(yard_a)`:                   "rate of what is no range",
		`keep_last_value(yard_a)`:        "keep_last_value is no function that is looked up",
		`sum(yard_a`:                     "unexpected token",
		`yard_b unless on (lane) yard_a`: "nothing has the label lane",
		`{state="active"}`:               "names no metric",
	} {
		_, wrong := s.check(expr)
		if got := strings.Join(wrong, "; "); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
