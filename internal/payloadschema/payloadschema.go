// Package payloadschema compiles JSON Schemas of draft 2020-12 and checks payloads against
// them, both within bounds: no schema and no payload makes it load a document, or compute
// for a time that is not proportional to their sizes.
package payloadschema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaURL is the base of references within a schema that has no $id.
const schemaURL = "schema:///payload"

// SchemaError is returned for a schema that cannot be used.
type SchemaError struct {
	Path   string // JSON Pointer to the place in the schema; "": the whole
	Reason string
}

func (e *SchemaError) Error() string {
	if e.Path == "" {
		return "schema: " + e.Reason
	}
	return "schema at " + e.Path + ": " + e.Reason
}

// Schema is a compiled schema. Its methods may be called from any goroutine.
type Schema struct {
	text []byte
	free chan *checker // that no check uses
}

// Compile compiles a schema. It refuses one of another draft, and one that refers to other
// documents. The formats of draft 2020-12 are checked, not only annotated. The error is a
// [*SchemaError].
func Compile(text []byte) (*Schema, error) {
	c, err := newChecker(text)
	if err != nil {
		return nil, err
	}
	s := &Schema{text: text, free: make(chan *checker, runtime.GOMAXPROCS(0))}
	s.free <- c
	return s, nil
}

// Violation describes why a payload does not match a schema. Its texts contain no values of
// the payload, only names.
type Violation struct {
	Path   string // JSON Pointer to a value in the payload; "": the whole
	Reason string // such as "must be a string"
}

// Check returns why a payload, which is JSON, does not match the schema, nil if it does. Of
// several reasons it always returns the same.
func (s *Schema) Check(payload []byte) *Violation {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return &Violation{"", "is not valid JSON"}
	}
	if place := hugeNumber(value, nil); place != nil {
		return &Violation{pointer(place), hugeReason}
	}
	var c *checker
	select {
	case c = <-s.free:
	default: // as many checks as there are processors are running
		var err error
		if c, err = newChecker(s.text); err != nil {
			return &Violation{"", "cannot be checked: " + err.Error()}
		}
	}
	violation := c.check(value, len(payload))
	select {
	case s.free <- c:
	default:
	}
	return violation
}

// checker is a compiled schema for one check at a time.
type checker struct {
	compiled *jsonschema.Schema
	steps    steps
	patterns patterns
}

// newChecker compiles a schema. The error is a [*SchemaError].
func newChecker(text []byte) (*checker, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, &SchemaError{"", fmt.Sprintf("is not valid JSON: %v", err)}
	}
	if err := checkDocument(doc); err != nil {
		return nil, err
	}
	c := &checker{patterns: patterns{left: maxPatternSize}}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseLoader(noLoader{})
	compiler.UseRegexpEngine(c.patterns.compile)
	if err := compiler.AddResource(schemaURL, doc); err != nil {
		return nil, schemaError(doc, err)
	}
	if c.compiled, err = compiler.Compile(schemaURL); err != nil {
		return nil, schemaError(doc, err)
	}
	if !c.steps.count(c.compiled) {
		return nil, &SchemaError{"", errRemote.Error()}
	}
	return c, nil
}

// check validates a value whose JSON has the given size.
func (c *checker) check(value any, size int) (violation *Violation) {
	c.steps.left, c.patterns.left = minSteps+stepsPerByte*size, maxPatternSize
	defer func() {
		switch failure := recover(); failure {
		case nil:
		case errTooManySteps:
			violation = &Violation{"", "takes too long to check: the schema has too many alternatives for it"}
		default: // of the library
			violation = &Violation{"", fmt.Sprintf("cannot be checked: %v", failure)}
		}
	}()
	err := c.compiled.Validate(value)
	if err == nil {
		return nil
	}
	failure, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return &Violation{"", "does not match"}
	}
	return violationOf(failure)
}

// noLoader refuses to load documents.
type noLoader struct{}

var errRemote = errors.New("refers to another document; include its definitions under $defs")

func (noLoader) Load(string) (any, error) { return nil, errRemote }

// checkDocument checks what the library does not: a schema is an object of draft 2020-12.
func checkDocument(doc any) error {
	root, ok := doc.(map[string]any)
	if !ok {
		return &SchemaError{"", "must be a JSON object"}
	}
	draft, given := root["$schema"]
	if name, _ := draft.(string); given && strings.TrimSuffix(name, "#") != jsonschema.Draft2020.String() {
		return &SchemaError{"/$schema", "must be " + jsonschema.Draft2020.String() + ", or missing"}
	}
	if place := hugeNumber(doc, nil); place != nil {
		return &SchemaError{pointer(place), hugeReason}
	}
	return nil
}

// schemaError describes the error of the library for a schema.
func schemaError(doc any, err error) error {
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if cause, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			violation := violationOf(cause)
			return &SchemaError{violation.Path, violation.Reason}
		}
	}
	if remote, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return &SchemaError{pointer(findReference(doc, remote.URL, nil)), errRemote.Error()}
	}
	if invalid, ok := errors.AsType[*jsonschema.InvalidRegexError](err); ok {
		_, path, _ := strings.Cut(invalid.URL, "#")
		return &SchemaError{path, fmt.Sprintf("is not a valid pattern: %v", invalid.Err)}
	}
	return &SchemaError{"", strings.ReplaceAll(err.Error(), schemaURL, "")}
}
