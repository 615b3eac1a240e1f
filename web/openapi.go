package web

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Document is the OpenAPI 3.1 document of routes, as it is served beside them.
func Document(version string, guarded bool, routes []Route) ([]byte, error) {
	entries := make([]*entry, len(routes))
	for i := range routes {
		e, err := newEntry(&routes[i])
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", routes[i].Name, err)
		}
		entries[i] = e
	}
	return describe(version, guarded, entries)
}

// describe writes the OpenAPI 3.1 document of the routes.
func describe(version string, guarded bool, entries []*entry) ([]byte, error) {
	paths := schema{}
	for _, e := range entries {
		path, ok := paths[e.path].(schema)
		if !ok {
			path = schema{}
			paths[e.path] = path
		}
		path[strings.ToLower(e.method)] = e.operation()
	}
	paths["/healthz"] = schema{"get": look("healthz", "whether the process serves", false)}
	paths["/readyz"] = schema{"get": look("readyz", "whether the node is ready, and why not", true)}
	paths["/metrics"] = schema{"get": schema{
		"operationId": "metrics", "summary": "what this node measures, for Prometheus",
		"responses": schema{"200": schema{"description": "done", "content": schema{"text/plain": schema{"schema": schema{"type": "string"}}}}},
	}}
	document := schema{
		"openapi": "3.1.0",
		"info": schema{
			"title": "Yardmaster", "version": version,
			"description": "Jobs, queues and the state of the yard. What is answered over NATS under yard.api.v1 is answered here.",
		},
		"paths":      paths,
		"components": schema{"schemas": schema{"Error": schemaOf(reflect.TypeFor[errorAnswer](), true)}},
	}
	if guarded {
		document["components"].(schema)["securitySchemes"] = schema{"token": schema{"type": "http", "scheme": "bearer"}}
		document["security"] = []schema{{"token": []string{}}}
	}
	return json.MarshalIndent(document, "", "  ")
}

// operation is one method of one path.
func (e *entry) operation() schema {
	parameters := []schema{}
	fields := fieldsOf(reflect.TypeOf(e.Question))
	for _, name := range e.wildcards {
		kind := reflect.TypeFor[string]()
		if f := find(fields, name); f != nil && name != e.Token {
			kind = f.kind
		}
		if s := schemaOf(kind, false); s["type"] == "array" { // one of them
			parameters = append(parameters, schema{"name": name, "in": "path", "required": true, "schema": s["items"]})
		} else {
			parameters = append(parameters, schema{"name": name, "in": "path", "required": true, "schema": s})
		}
	}
	for _, name := range named(e.Query) {
		parameters = append(parameters, schema{"name": name, "in": "query", "schema": duration()})
	}
	operation := schema{
		"operationId": e.Name, "summary": e.About,
		"responses": schema{
			strconv.Itoa(e.Status): schema{"description": "done", "content": content(schemaOf(reflect.TypeOf(e.Answer), true))},
			"default": schema{
				"description": "refused, by the status; 503 and 429 say in Retry-After when to ask again",
				"content":     content(schema{"$ref": "#/components/schemas/Error"}),
			},
		},
	}
	if e.Indexed {
		good := operation["responses"].(schema)[strconv.Itoa(e.Status)].(schema)
		good["headers"] = schema{headerIndex: schema{
			"description": "the index of the ledger's last entry that this shows", "schema": schema{"type": "integer"},
		}}
	}
	if e.Waited != nil {
		operation["responses"].(schema)["200"] = schema{
			"description": "the job, to who has waited for its end", "content": content(schemaOf(reflect.TypeOf(e.Waited), true)),
		}
	}
	properties := schema{}
	for _, k := range e.keys {
		if e.bodied() {
			properties[k.name] = schemaOf(k.kind, false)
			if shape, ok := e.Shapes[k.name]; ok { // what its type does not tell
				properties[k.name] = shape.schema()
			}
			continue
		}
		p := schema{"name": k.name, "in": "query", "schema": schemaOf(k.kind, false)}
		if name, ok := strings.CutSuffix(k.name, "_ms"); ok {
			p["name"], p["schema"] = name, duration()
		}
		if slices.Contains(named(e.Required), k.name) {
			p["required"] = true
		}
		parameters = append(parameters, p)
	}
	if len(properties) > 0 {
		body := schema{"type": "object", "properties": properties}
		if len(e.Required) > 0 {
			body["required"] = named(e.Required)
		}
		operation["requestBody"] = schema{"content": content(body), "required": len(e.Required) > 0}
	}
	if len(parameters) > 0 {
		operation["parameters"] = parameters
	}
	return operation
}

func (s *Shape) schema() schema {
	of := schemaOf(reflect.TypeOf(s.Of), false)
	if fields, ok := of["properties"].(schema); ok {
		delete(fields, s.Without)
	}
	if s.List {
		return schema{"type": "array", "items": of}
	}
	return of
}

func content(s schema) schema { return schema{"application/json": schema{"schema": s}} }

func duration() schema {
	return schema{"type": "string", "description": "a duration, such as 30s"}
}

// look is a path that needs no token.
func look(name, about string, maybe bool) schema {
	good := content(schema{"type": "object"})
	responses := schema{"200": schema{"description": "yes", "content": good}}
	if maybe {
		responses["503"] = schema{"description": "no", "content": good}
	}
	return schema{"operationId": name, "summary": about, "security": []schema{}, "responses": responses}
}
