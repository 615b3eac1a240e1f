package overhop

import (
	"encoding/json"
	"reflect"
	"testing"
)

// sealed has no exported field and encodes itself.
type sealed struct{ v int }

func (s sealed) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]int{"v": s.v}) }

func (s *sealed) UnmarshalJSON(text []byte) error {
	var m map[string]int
	err := json.Unmarshal(text, &m)
	s.v = m["v"]
	return err
}

// lamp encodes itself by a method of its pointer.
type lamp bool

func (l *lamp) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[bool]string{true: "on"}[bool(*l)])
}

func (l *lamp) UnmarshalJSON(text []byte) error {
	*l = string(text) == `"on"`
	return nil
}

// TestMarshal_JSONMarshalers checks that values that encode themselves as JSON arrive as they
// were sent, and are on the wire what encoding/json would write.
func TestMarshal_JSONMarshalers(t *testing.T) {
	type values struct {
		Sealed sealed          `json:"sealed"`
		Lamp   *lamp           `json:"lamp"`
		Raw    json.RawMessage `json:"raw"`
		None   json.RawMessage `json:"none,omitempty"`
		Half   float64         `json:"half"`
	}
	on := lamp(true)
	sent := values{sealed{7}, &on, json.RawMessage(`{"a":[1.5,"x"]}`), nil, 0.5}
	encoded, err := Marshal(&sent)
	if err != nil {
		t.Fatal(err)
	}
	text, err := AppendJSON(nil, encoded)
	if err != nil {
		t.Fatal(err)
	}
	var wire, want any
	if err := json.Unmarshal(text, &wire); err != nil {
		t.Fatal(err)
	}
	standard, err := json.Marshal(&sent)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(standard, &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(wire, want) {
		t.Errorf("encoded as %s, encoding/json writes %s", text, standard)
	}
	var got values
	if err := Unmarshal(encoded, &got); err != nil || !reflect.DeepEqual(got, sent) {
		t.Errorf("decoded %+v, %v; want %+v", got, err, sent)
	}
}

// TestUnmarshal_Base64 checks that bytes are read from the text in which JSON has them.
func TestUnmarshal_Base64(t *testing.T) {
	var got []byte
	if err := Unmarshal(AppendStr(nil, "AP8="), &got); err != nil || string(got) != "\x00\xff" {
		t.Errorf("%x, %v", got, err)
	}
}
