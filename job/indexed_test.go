package job

import (
	"reflect"
	"strings"
	"testing"
)

func TestIndexedParams(t *testing.T) {
	long := strings.Repeat("ü", MaxIndexed)
	params := `{"customer":"acme","n":1.0,"yes":true,"no":null,"list":["a"],"order":{"id":7,"a b":"x"},"empty":"","long":"x` + long + `","text":"a\u0000\n"}`
	paths := []string{"params.customer", "params.n", "params.yes", "params.no", "params.list", "params.order", "params.order.id", "params.order.a b",
		"params.order.id.x", "params.empty", "params.missing", "params.missing.x", "params.long", "params.text"}
	want := []Label{{"customer", "acme"}, {"n", "1"}, {"yes", "true"}, {"order.id", "7"}, {"order.a b", "x"}, {"long", "x" + long[:MaxIndexed-2]}, {"text", "a\x00\n"}}
	got := IndexedParams([]byte(params), paths)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("labels are %q, want %q", got, want)
	}
	if again := IndexedValuesOf(got).Labels(paths); !reflect.DeepEqual(again, want) {
		t.Errorf("the values have the labels %q", again)
	}
	for _, params := range []string{"", "{}", "[1]", "{", "null"} {
		if got := IndexedParams([]byte(params), paths); got != nil {
			t.Errorf("%s has the labels %q", params, got)
		}
	}
	forged := IndexedValues{"customer": "a" + long, "other": "x"}
	if got := forged.Labels(paths[:2]); len(got) != 1 || len(got[0].Value) > MaxIndexed {
		t.Errorf("values of others have the labels %q", got)
	}
}
