package job

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// A fault that is too long keeps its type and code, and the beginning and the end of its message and of
// its details.
func TestFault_Cut(t *testing.T) {
	longText := strings.Repeat(`ä"\`+"\n", 4000) + "the end"
	longDetails, err := json.MarshalIndent(map[string]string{"stack": longText}, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name             string
		message, details string
		cutMessage       bool
		cutDetails       bool
	}{
		{name: "short", message: "m", details: `{"a":1.50}`},
		{name: "details use what the message leaves", message: "m", details: `"` + strings.Repeat("d", MaxInlineFault-200) + `"`},
		{name: "long message", message: longText, cutMessage: true},
		{name: "long details", message: "m", details: string(longDetails), cutDetails: true},
		{name: "both", message: longText, details: string(longDetails), cutMessage: true, cutDetails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := Fault{Message: c.message, Type: "t", Code: "c", Details: json.RawMessage(c.details)}
			f.Cut(MaxInlineFault)
			if n := f.Size(); n > MaxInlineFault || (c.cutMessage || c.cutDetails) && n < MaxInlineFault*9/10 {
				t.Errorf("%d bytes remain", n)
			}
			isCut := func(text string) bool {
				return strings.HasPrefix(text, `ä"\`) && strings.Contains(text, " bytes omitted ...\n") && strings.HasSuffix(text, "the end")
			}
			if c.cutMessage != isCut(f.Message) || !c.cutMessage && f.Message != c.message || !utf8.ValidString(f.Message) {
				t.Errorf("message is %q", f.Message)
			}
			if !c.cutDetails {
				if string(f.Details) != c.details {
					t.Errorf("details are %s", f.Details)
				}
				return
			}
			var cut struct{ Stack string }
			if err := json.Unmarshal(f.Details, &cut); err != nil || !isCut(cut.Stack) {
				t.Fatalf("details are %s, %v", f.Details, err)
			}
		})
	}
}

// Details that are cut twice, by the node and by the ledger, have the size and the beginning
// of the original.
func TestCutJSON_Twice(t *testing.T) {
	original, err := json.Marshal(map[string]string{"stack": strings.Repeat(`ä"\`, 2000)})
	if err != nil {
		t.Fatal(err)
	}
	once := CutJSON(original, 512)
	if twice := CutJSON(CutJSON(original, 4000), 512); string(twice) != string(once) {
		t.Errorf("cut twice:\n%s\ncut once:\n%s", twice, once)
	}
}
