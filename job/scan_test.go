package job

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestScan checks that scan accepts the usual forms, with the result of encoding/json.
func TestScan(t *testing.T) {
	for _, body := range []string{
		`{"function":"echo"}`,
		` { "function" : "demo#echo" , "params" : { } } `,
		`{"params":{"to":"ann","n":[1,-2.5e+3,0,true,false,null],"deep":{"er":{}}},"priority":0,"max_attempts":12}`,
		`{"function":"f","delay_ms":30000,"result_ttl_ms":0}`,
		`{"function":"f","limit_key":"customer 7","expires_in_ms":1000}`, `{"function":"f","key":"customer 7"}`,
		`{"function":"f","retry_on_timeout":true}`, `{"function":"f","retry_on_timeout" : false }`,
		`{"function":"f","params":{"text":"a \"quoted\" \\ word – ünï"},"timeout_ms":100000000000000000,"retry_interval_ms":1}`,
	} {
		var got, want Spec
		if err := json.Unmarshal([]byte(body), &want); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if !got.scan([]byte(body), true) {
			t.Errorf("%s: not accepted", body)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", body, diff)
		}
	}
}

// TestScan_SkipsKey checks that scan skips any text under "key" if it is told to.
func TestScan_SkipsKey(t *testing.T) {
	var s Spec
	if !s.scan([]byte(`{"function":"f","key":"order \"7\" – ünï"}`), false) || s.Function != "f" || s.Key != nil {
		t.Errorf("got %+v", s)
	}
}

// TestScan_FallsBack checks that scan leaves everything else to encoding/json.
func TestScan_FallsBack(t *testing.T) {
	for _, body := range []string{
		``, `{`, `[]`, `{}`, `{"function":"f"`, `{"function":"f"}x`, `{"function":"f",}`, `{,"function":"f"}`,
		`{"function":"a","function":"b"}`, `{"params":{},"params":{}}`, `{"priority":1,"priority":2}`,
		`{"Function":"f"}`, `{"function":"\u0041"}`, `{"function":"ü"}`, `{"function":null}`, `{"other":1}`, `{"function":"f","key":"ünï"}`, `{"limit_key":"a","limit_key":"b"}`, `{"function":"f","":"k"}`,
		`{"priority":1.0}`, `{"priority":1e1}`, `{"priority":01}`, `{"priority":-1}`, `{"priority":1000000000000000000}`,
		`{"retry_on_timeout":null}`, `{"retry_on_timeout":"true"}`, `{"retry_on_timeout":tru}`, `{"retry_on_timeout":true,"retry_on_timeout":true}`,
		`{"params":null}`, `{"params":[]}`, `{"params":{"a":01}}`, `{"params":{"a":1.}}`, `{"params":{"a":-}}`, `{"params":{"a":1e}}`,
		`{"params":{"a":tru}}`, `{"params":{"a" 1}}`, `{"params":{1:1}}`, `{"params":{"a":1]}`, `{"params":{"a":[1}}}`,
		"{\"params\":{\"a\":\"\n\"}}", `{"params":{"a":"\x"}}`, `{"params":{"a":"`, `{"params":{"a":"\`, `{"params":{"a":1,}}`,
		`{"params":{"a":"\u0041"}}`, `{"params":{"a":` + strings.Repeat("[", maxScanDepth) + strings.Repeat("]", maxScanDepth) + `}}`,
	} {
		var s Spec
		if s.scan([]byte(body), true) {
			t.Errorf("%s accepted as %+v", body, s)
		}
	}
}

// FuzzScan checks that encoding/json accepts every body that scan accepts, with the
// same result.
func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"function":"demo#echo","params":{"to":"ann","n":[1,-2.5e+3,0,true,null]},"priority":9,"max_attempts":3}`))
	f.Add([]byte(`{ "timeout_ms" : 1000, "retry_interval_ms":10,"params":{"a":"\\\"\/\b\f\n\r\t"}}`))
	f.Add([]byte(`{"params":{"a":[[[[{}]]]]}}`))
	f.Add([]byte(`{"function":"f","unique_key":"k\"","unique_ttl_ms":5}`))
	f.Add([]byte(`{"function":"f","unique_key":"k","unique_until":"end"}`))
	f.Add([]byte(`{"function":"f","delay_ms":5,"result_ttl_ms":1}`))
	f.Add([]byte(`{"function":"f","limit_key":"a","key":"b","expires_in_ms":1,"tags":["a"]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var got, want Spec
		if !got.scan(body, true) {
			return
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("scan accepted the body, but encoding/json: %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
	})
}

func BenchmarkParseSpec(b *testing.B) {
	body := []byte(`{"function":"echo","params":{"to":"ann","n":12345,"pad":"` + string(testBody256()) + `"}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseSpec(body); err != nil {
			b.Fatal(err)
		}
	}
}

func testBody256() []byte {
	pad := make([]byte, 180)
	for i := range pad {
		pad[i] = 'x'
	}
	return pad
}
