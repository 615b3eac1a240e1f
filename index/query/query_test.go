package query

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/yardmaster-dev/yardmaster/job"
)

// now is a Thursday, a quarter past two in the afternoon in the zone of the tests.
var (
	zone    = time.FixedZone("", 2*3600)
	now     = time.Date(2026, 11, 26, 14, 15, 30, 0, zone)
	options = Options{Now: now, Location: zone}
)

func parse(t testing.TB, text string) *Query {
	t.Helper()
	q, err := Parse(text, options)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return q
}

// TestString checks the canonical text of queries, and that it denotes the same query at
// another time in another zone.
func TestString(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "",
		"  queue:mail   state:FAILED ":     "queue:mail state:failed",
		"Queue:mail and not state:failed":  "queue:mail -state:failed",
		"a or b c":                         "a or b c",
		"(a or b) c":                       "(a or b) c",
		"((a b) c) or (d or e)":            "a b c or d or e",
		"not not a":                        "a",
		"--(a or b)":                       "a or b",
		"-(a b)":                           "-(a b)",
		"not (a or -b)":                    "-(a or -b)",
		"AND:x":                            "AND:x",
		`"or" "-a" "a:b" "<" "two words"`:  `"or" "-a" "a:b" "<" "two words"`,
		`"plain" queue:"mail"`:             "plain queue:mail",
		`key:"a \"b\" \\ c"`:               `key:"a \"b\" \\ c"`,
		"key:http://x/1..2":                "key:http://x/1..2",
		`tag:"1..2","<3"`:                  `tag:"1..2","<3"`,
		"queue:a,b*,\"c d\"*":              "queue:a,b*,\"c d\"*",
		"tag:*":                            "tag:*",
		"customer:acme":                    "customer:acme",
		"META.Region:eu params.order.id:7": "meta.Region:eu params.order.id:7",
		`meta."a: b":x`:                    `meta."a: b":x`,
		"id:6F1D0C52-8e0b-5a3e-9c41-7a72646d7374": "id:6f1d0c52-8e0b-5a3e-9c41-7a72646d7374",
		"attempts:3 attempts:>3 attempts:>=3":     "attempts:3 attempts:>=4 attempts:>=3",
		"attempts:<3,<=3,2..5,2..<5,3..3":         "attempts:<3,<4,2..5,2..4,3",
		"attempts:>4294967295,<=4294967295":       "attempts:>4294967295,<=4294967295",
		"took:>2s,>=2s,<2s,<=2s":                  "took:>2s,>=2s,<2s,<=2s",
		"took:1s..2s,1s..<2s":                     "took:1s..2s,1s..<2s",
		"since:1h":                                "since:2026-11-26T11:15:30Z",
		"since:2026-11-01":                        "since:2026-10-31T22:00:00Z",
		"created:3d":                              "created:>=2026-11-23T12:15:30Z",
		"created:3d..1d":                          "created:2026-11-23T12:15:30Z..<2026-11-25T12:15:30Z",
		"created:2026-11-01":                      "created:2026-10-31T22:00:00Z..<2026-11-01T22:00:00Z",
		"created:>2026-11-01":                     "created:>=2026-11-01T22:00:00Z",
		"created:>=2026-11-01":                    "created:>=2026-10-31T22:00:00Z",
		"created:<=2026-11-01":                    "created:<2026-11-01T22:00:00Z",
		"created:2026-11-01..2026-11-03":          "created:2026-10-31T22:00:00Z..<2026-11-03T22:00:00Z",
		"created:2026-10":                         "created:2026-09-30T22:00:00Z..<2026-10-31T22:00:00Z",
		"started:today,yesterday":                 "started:2026-11-25T22:00:00Z..<2026-11-26T22:00:00Z,2026-11-24T22:00:00Z..<2026-11-25T22:00:00Z",
		"ended:14:00":                             "ended:2026-11-26T12:00:00Z..<2026-11-26T12:01:00Z",
		"ended:15:00":                             "ended:2026-11-25T13:00:00Z..<2026-11-25T13:01:00Z",
		"ended:14:00..14:30":                      "ended:2026-11-26T12:00:00Z..<2026-11-26T12:31:00Z",
		"ended:23:30..00:30":                      "ended:2026-11-25T21:30:00Z..<2026-11-25T22:31:00Z",
		"ended:2026-11-01T23:30..00:30:15":        "ended:2026-11-01T21:30:00Z..<2026-11-01T22:30:16Z",
		"ended:2026-11-01T12:00:00.5+01:00":       "ended:2026-11-01T11:00:00.5Z..<2026-11-01T11:00:00.6Z",
		"created:2026-11-01T11:00:00.103Z":        "created:2026-11-01T11:00:00.103Z..<2026-11-01T11:00:00.104Z",
		"created:>2026-11-01T11:00:00.100Z":       "created:>=2026-11-01T11:00:00.101Z",
		"created:2026-11-01T11:00:00.123456789Z":  "created:2026-11-01T11:00:00.123456789Z..<2026-11-01T11:00:00.12345679Z",
		"ended:<now sort:-created":                "ended:<2026-11-26T12:15:30Z",
		"sort:ended a or b":                       "a or b sort:ended",
		"sort:-ENDED":                             "sort:-ended",
	} {
		q := parse(t, text)
		if got := q.String(); got != want {
			t.Errorf("%s is canonically\n %s, want\n %s", text, got, want)
		}
		again, err := Parse(q.String(), Options{Now: now.AddDate(1, 0, 0)})
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%s and its canonical text are\n %#v and\n %#v, %v", text, q, again, err)
		}
	}
}

// TestErrors checks the errors of faulty queries. The faulty part of each is between « and ».
func TestErrors(t *testing.T) {
	for _, test := range []struct{ text, problem, advice string }{
		{"queue:mail «sate»:failed", `no field is called "sate"`, "did you mean state?"},
		{"«queu»:mail", `no field is called "queu"`, "did you mean queue?"},
		{"«attempst»:3", `no field is called "attempst"`, "did you mean attempts?"},
		{"«mode»:x", `no field is called "mode"`, "meta.mode or params.mode"},
		{"state:«faild»", `there is no state "faild"`, "did you mean failed? The states are waiting,"},
		{"state:failed,«new»", `there is no state "new"`, "the states are waiting,"},
		{"state:«fail*»", "states have no prefixes", "state:failed,cancelled"},
		{"«meta»:x", "meta is not a field without a name", "meta.customer:acme"},
		{"«params.»:x", "params is not a field without a name", "params.customer:acme"},
		{"a «:»b", "no field is before the colon", `"a:b"`},
		{"a «queue:»", "a value is missing", "queue:*"},
		{"«queue:a,», b", "a value is missing", "queue:*"},
		{"«foo:»", "a value is missing", "foo:* finds all jobs that have one"},
		{"«took:»", "a value is missing", "after the colon or the comma"},
		{"a «state=failed»", "a field is followed by a colon", "write state:failed, or quote the text"},
		{"«Error!=timeout»", "a field is followed by a colon", "write -Error:timeout,"},
		{"«duration»:5s", `no field is called "duration"`, "did you mean took?"},
		{`key:«""»`, "no job has an empty text", "-key:* finds jobs that have none"},
		{`key:«"abc»`, "the quoted text is not closed", `write " after it`},
		{"queue:«(»a b)", "a parenthesis is where a value should be", "a,b"},
		{"queue:a«(»b)", "'(' follows the value directly", "write a space"},
		{`queue:a«"»b"`, `'"' follows the value directly`, "write a space"},
		{"queue:a*«b»", "'b' follows the value directly", "write a space"},
		{"queue:«>5»", "only numbers, times and durations can be compared", "quote the text"},
		{"id:«6f1d»", "an id is a UUID", "its beginning and *"},
		{"text:«--»", "the text has no word", "letters or digits"},
		{"attempts:«many»", `"many" is not a number from 0 to 4294967295`, "attempts:>3"},
		{"attempts:«>-1»", `"-1" is not a number`, "attempts:2..5"},
		{"attempts:«2*»", "the value is not a text", "attempts:>="},
		{"attempts:«5..2»", "the range has nothing in it", "the smaller value first"},
		{"params.n:«5..10»", "only fields of numbers, times and durations have ranges", "quote the text"},
		{"created:«..2026-11-01»", "the range has no beginning", "write created:<=2026-11-01"},
		{"attempts:«..<3»", "the range has no beginning", "write attempts:<3"},
		{"took:«1s..»", "the range has no end", "write took:>=1s"},
		{"took:«..»", "the range has no ends", "before and after"},
		{"took:«-1s»", `"-1s" is not a duration`, "with a unit"},
		{"took:«2s»", "hardly a job took exactly so long", "took:>2s"},
		{"took:«>2»", `"2" is not a duration`, "with a unit"},
		{"created:«soon»", `"soon" is not a time`, "2026-11-01T14:05"},
		{"created:«2026*»", "a time has no prefixes", "created:2026-11-01"},
		{"created:«>1969-01-01»", "is out of range", "1970 to 2200"},
		{"created:«2201-01-01»", "is out of range", "1970 to 2200"},
		{"created:«3d..5d»", "the range has nothing in it", "the smaller value first"},
		{"since:«>1h»", "since has the time at which it begins", "since:1h"},
		{"sort:«queue»", `jobs cannot be sorted by "queue"`, "sort:-ended"},
		{"sort:ended «sort:created»", "there is more than one sort", "write one"},
		{"a (b «sort:ended»)", "sort is in parentheses or excluded", "outside of them"},
		{"-«sort:ended»", "sort is in parentheses or excluded", "outside of them"},
		{"«or» a", `a term is missing beside "or"`, "both sides"},
		{"a or «or» b", `a term is missing beside "or"`, "both sides"},
		{"«and» a", `a term is missing before "and"`, "both sides"},
		{"a «and»", `a term is missing after "and"`, "both sides"},
		{"a «not»", "a term is missing after the exclusion", "-field:text"},
		{"a «- »or b", "a term is missing after the exclusion", "-field:text"},
		{"a «(»b", "this parenthesis is not closed", "write )"},
		{"a «( )»", "there is no term in these parentheses", "write one"},
		{"a«)» b", "no parenthesis is open here", "remove this one"},
		{"(a)«b»", "'b' follows the closing parenthesis directly", "write a space"},
		{"a «,»b", "a term is missing here", "quote punctuation"},
		{"a \xff«»", "a byte is not UTF-8", "UTF-8"},
	} {
		before, rest, _ := strings.Cut(test.text, "«")
		part, after, _ := strings.Cut(rest, "»")
		offset, length := len(before), len(part)
		if part == "" {
			offset, length = len(before)-1, 1
		}
		_, err := Parse(before+part+after, options)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%s: %v, want an error", test.text, err)
			continue
		}
		if syntax.Offset != offset || syntax.Length != length || !strings.Contains(syntax.Problem, test.problem) || !strings.Contains(syntax.Advice, test.advice) {
			t.Errorf("%s:\n at %d+%d: %v\nwant\n at %d+%d: %s; %s", test.text, syntax.Offset, syntax.Length, err, offset, length, test.problem, test.advice)
		}
	}
}

// TestBounds checks that queries beyond the bounds are refused, and those at the bounds are not.
func TestBounds(t *testing.T) {
	for text, problem := range map[string]string{
		strings.Repeat("a", MaxLength):                          "",
		strings.Repeat("a", MaxLength+1):                        "bytes",
		"tag:a" + strings.Repeat(",a", 255):                     "",
		"tag:a" + strings.Repeat(",a", 256):                     "more than 256 values",
		strings.Repeat("a ", 257):                               "more than 256 values",
		strings.Repeat("(", 32) + "a" + strings.Repeat(")", 32): "",
		strings.Repeat("(", 33) + "a" + strings.Repeat(")", 33): "nested more than 32 deep",
		strings.Repeat("-", 33) + "a":                           "nested more than 32 deep",
		strings.Repeat("created:1d..1h ", 256):                  "the query has", // in full
	} {
		_, err := Parse(text, Options{Now: now.Add(time.Nanosecond)})
		if (err == nil) != (problem == "") || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%.20s… of %d bytes: %v, want an error with %q", text, len(text), err, problem)
		}
	}
}

// TestParams checks which params are accepted, given the indexed ones.
func TestParams(t *testing.T) {
	options := Options{Params: []string{"params.customer", "params.order.id"}}
	for text, want := range map[string]string{
		"params.customer:x": "", "PARAMS.order.id:7": "", "customer:x": "", "meta.region:x": "",
		"params.custmer:x":  "no queue indexes params.custmer; did you mean params.customer?",
		"params.region:x":   "'yardmaster queue set <queue> --index params.region' indexes it in jobs that are accepted from then on; indexed are params.customer, params.order.id",
		`params."a b":x`:    "--index 'params.a b'",
		"a params.Region:x": "at byte 2:",
	} {
		_, err := Parse(text, options)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
	if _, err := Parse("params.a:x", Options{Params: []string{}}); err == nil {
		t.Error("a path is accepted where none is indexed")
	}
}

// TestParse_JobName checks which queries name a job by its queue and its key or id.
func TestParse_JobName(t *testing.T) {
	const id = "14df2827-f961-54a8-80ba-03ede2a235dd"
	isMail := func(name string) bool { return name == "mail" }
	for text, want := range map[string]string{
		"mail:order-1": "mail:order-1 or (queue:mail key:order-1)", "customer:acme": "customer:acme", "mail:" + id: "id:" + id, "gone:" + id: "id:" + id,
		"mail:order*": "mail:order*", "mail:a,b": "mail:a,b", "-mail:a": "-mail:a", "mail:a tag:eu": "mail:a tag:eu",
	} {
		q, err := Parse(text, Options{HasQueue: isMail})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := q.String(); got != want && got != strings.NewReplacer("(", "", ")", "").Replace(want) {
			t.Errorf("%s is read as %s, want %s", text, got, want)
		}
	}
}

// TestUnknownLabels checks what is said of labels that no job has.
func TestUnknownLabels(t *testing.T) {
	labels := []string{"customer", "mode"}
	has := func(t *Term) bool { return slices.Contains(labels, t.Name) }
	hasQueue := func(name string) bool { return name == "mail" }
	for text, want := range map[string]string{
		"customer:x": "", "meta.mode:x": "", "state:failed tag:x word": "",
		"custmer:x": "custmer:x: no job has this label; did you mean customer?", "-custmer:x or queue:a": "did you mean customer?", "meta.custmer:x": "did you mean customer?",
		"mail:k": "", "mail:k sort:ended": "", "mail:k state:failed": "mail:k: no job has this label; beside other terms, a key of a queue is written queue:mail key:k", "-mail:k": "queue:mail key:k",
		"mail:6f1d0c52-8e0b-5a3e-9c41-7a72646d7374 tag:x": "queue:mail id:6f1d0c52-8e0b-5a3e-9c41-7a72646d7374",
		"region:x (a or region:y)":                        "region:x: no job has this label, jobs have customer, mode; the fields are id, key,",
	} {
		q, err := Parse(text, Options{HasQueue: hasQueue})
		if err != nil {
			t.Fatal(err)
		}
		advice := q.UnknownLabels(has, hasQueue, func() []string { return labels })
		if got := strings.Join(advice, "\n"); (got == "") != (want == "") || !strings.Contains(got, want) || len(advice) > 1 {
			t.Errorf("%s: %q, want one advice with %q", text, got, want)
		}
	}
	old := Options{Params: []string{"params.customer"}, HasLabel: func(t *Term) bool { return t.Name == "order.id" }}
	if _, err := Parse("params.order.id:7", old); err != nil {
		t.Errorf("a param that was indexed: %v", err)
	}
}

func sample() *job.Document {
	id, _ := job.ParseID("6f1d0c52-8e0b-5a3e-9c41-7a72646d7374")
	return &job.Document{
		ID: id, Key: "order-17", LimitKey: "acme", Queue: "mail", Function: "send", State: job.Failed, Tags: []string{"eu", "big one"},
		Meta: []job.Label{{Name: "customer", Value: "acme"}}, Params: []job.Label{{Name: "to.name", Value: "Ann"}},
		Priority: 5, Attempts: 3, Dispatches: 4, Node: "n1", Worker: "overhop/17",
		Created: now.Add(-2 * time.Hour), Started: now.Add(-90 * time.Minute), Ended: now.Add(-90*time.Minute + 2*time.Second),
		Fault: &job.Fault{Type: "SMTPError", Code: "E550", Message: "smtp: 550 Mailbox müller@example.org is full"},
	}
}

// TestMatch checks the queries that a document matches, and those that it does not.
func TestMatch(t *testing.T) {
	for text, want := range map[string]bool{
		"":          true,
		"order-17":  true,
		"order*":    true,
		"order":     false,
		"acme":      true,
		"6F1D*":     true,
		"*":         true,
		"Mailbox":   true,
		"mail":      false,
		"mail*":     true,
		"full,none": true,

		"id:6f1d0c52-8e0b-5a3e-9c41-7a72646d7374": true,
		"id:6f1d0c52-8e0*":                        true,
		"id:6f1d0c528*":                           false,

		"key:acme":           true,
		"limit_key:acme":     true,
		"limit_key:order-17": false,
		"queue:mail":         true,
		"queue:MAIL":         false,
		"queue:a,ma*":        true,
		"function:send":      true,
		"state:failed":       true,
		"state:expired":      false,
		"tag:eu":             true,
		`tag:"big one"`:      true,
		"tag:us":             false,
		"customer:acme":      true,
		"meta.customer:acme": true,
		"meta.customer:a":    false,
		"to.name:Ann":        true,
		"params.to.name:A*":  true,
		"meta.to.name:Ann":   false,
		"error:smtperror":    true,
		"error:e550,x":       true,
		"error:SMTP*":        true,
		"error:mailbox":      false,

		"text:550":            true,
		`text:"full smtp"`:    true,
		`text:"mailbox mül"*`: true,
		`text:"mail smtp"`:    false,
		"text:MÜLLER":         true,
		"node:n1":             true,
		"worker:overhop/*":    true,
		"priority:5":          true,
		"attempts:>3":         false,
		"attempts:2..3":       true,
		"dispatches:>3":       true,

		"created:today": true,
		"created:>1h":   false,
		"started:>1h":   false,
		"ended:12:45":   true,
		"since:1h":      false,
		"since:2h":      true,
		"took:>2s":      false,
		"took:>=2s":     true,
		"took:1s..2s":   true,
		"took:<2s":      false,

		"queue:mail -state:failed":             false,
		"queue:x or state:failed":              true,
		"queue:x or state:failed tag:us":       false,
		"(queue:x or state:failed) -tag:us":    true,
		"-(queue:x or tag:us)":                 true,
		"queue:mail sort:ended":                true,
		"-limit_key:* or -meta.region:* tag:*": true,
	} {
		if got := parse(t, text).Match(sample()); got != want {
			t.Errorf("%s matches the sample: %v, want %v", text, got, want)
		}
	}
	empty := &job.Document{State: job.Waiting, Created: now}
	for text, want := range map[string]bool{
		"state:waiting": true, "key:*": false, "text:*": false, "error:*": false, "ended:<now": false, "took:>=0s": false, "since:1m": true, "-ended:<2030-01-01": true,
	} {
		if got := parse(t, text).Match(empty); got != want {
			t.Errorf("%s matches an empty job: %v, want %v", text, got, want)
		}
	}
}

// TestWords checks which words of a text are searched.
func TestWords(t *testing.T) {
	long := strings.Repeat("x", maxWordSize)
	for text, want := range map[string][]string{
		"":                          nil,
		"--":                        nil,
		"Müller's e-mail, mail 550": {"müller", "s", "e", "mail", "550"},
		"हिन्दी नमस्ते":             {"हिन्दी", "नमस्ते"},
		long + "yz":                 {long},
		strings.Repeat(" ", maxSearched-1) + "ab": {"a"},
	} {
		if got := Words(text); !reflect.DeepEqual(got, want) {
			t.Errorf("words of %.40q are %q, want %q", text, got, want)
		}
	}
	var many []string
	for i := range 2 * maxWords {
		many = append(many, fmt.Sprint(i))
	}
	if got := Words(strings.Join(many, " ")); !reflect.DeepEqual(got, many[:maxWords]) {
		t.Errorf("words are %q, want the first %d", got, maxWords)
	}
}

// exprs generates conditions that Parse can return.
func exprs(depth int) *rapid.Generator[Expr] {
	return rapid.Custom(func(t *rapid.T) Expr {
		n := 0
		if depth > 0 {
			n = rapid.IntRange(0, 5).Draw(t, "kind")
		}
		switch n {
		case 3:
			var all And
			for _, x := range rapid.SliceOfN(exprs(depth-1), 2, 4).Draw(t, "and") {
				if _, and := x.(And); !and {
					all = append(all, x)
				}
			}
			if len(all) > 1 {
				return all
			}
		case 4:
			var all Or
			for _, x := range rapid.SliceOfN(exprs(depth-1), 2, 4).Draw(t, "or") {
				if _, or := x.(Or); !or {
					all = append(all, x)
				}
			}
			if len(all) > 1 {
				return all
			}
		case 5:
			if x, ok := exprs(depth-1).Draw(t, "not").(Not); !ok {
				return Not{exprs(0).Draw(t, "term")}
			} else {
				return x
			}
		}
		return terms().Draw(t, "term")
	})
}

func terms() *rapid.Generator[Expr] {
	return rapid.Custom(func(t *rapid.T) Expr {
		x := &Term{Field: Field(rapid.IntRange(0, int(FieldTook)).Draw(t, "field"))}
		switch x.Field {
		case FieldMeta, FieldParams:
			x.Name = rapid.StringN(1, 8, -1).Draw(t, "name")
		case FieldLabel:
			x.Name = rapid.SampledFrom([]string{"customer", "region", "a.b", "x-y"}).Draw(t, "name")
		}
		from := rapid.Int64Range(0, 1<<40).Draw(t, "from")
		to := from + 1 + rapid.Int64Range(0, 1<<40).Draw(t, "length")
		if fields[x.Field].kind == numberKind {
			from, to = from%100, from%100+1+to%100
		}
		for range rapid.IntRange(1, 3).Draw(t, "values") {
			v := Value{Text: rapid.StringN(0, 10, -1).Draw(t, "text"), Prefix: rapid.Bool().Draw(t, "prefix")}
			switch k := fields[x.Field].kind; {
			case x.Field == FieldID && !v.Prefix:
				v.Text = job.ID{1, byte(from)}.String()
			case x.Field == FieldText:
				v.Text = "a" + v.Text
			case k == textKind && v.Text == "":
				v.Prefix = true
			case k == stateKind:
				v = Value{Text: rapid.SampledFrom(stateNames()).Draw(t, "state")}
			case k != textKind:
				v = Value{From: from, To: to}
				if n := rapid.IntRange(0, 2).Draw(t, "open"); n == 1 || x.Field == FieldSince {
					v.To = noTo
				} else if n == 2 {
					v.From = noFrom
				}
			}
			x.Values = append(x.Values, v)
		}
		return x
	})
}

// TestRoundTrip checks that the text of any query denotes it, and that a query and its
// exclusion match different documents.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := &Query{Where: exprs(3).Draw(t, "where")}
		q.Sort = Sort{ByEnd: rapid.Bool().Draw(t, "by end"), Oldest: rapid.Bool().Draw(t, "oldest")}
		again, err := Parse(q.String(), options)
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Fatalf("%s\n is %#v, %v\n of %#v", q, again, err, q)
		}
		if not := (&Query{Where: Not{q.Where}}); not.Match(sample()) == q.Match(sample()) {
			t.Fatalf("the sample matches %s and its exclusion, or neither", q)
		}
	})
}
