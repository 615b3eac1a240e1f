package web

import (
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
)

// operation returns the OpenAPI operation of the endpoint: its parameters in the path, the
// query and the header, its body if the method has one, and its responses. It adds the
// schemas of the bodies to named.
func (e *endpoint) operation(named *components) schema {
	operation := schema{"operationId": e.Name, "summary": e.Summary, "responses": e.responses(named)}
	if body := e.requestBody(named); body != nil {
		operation["requestBody"] = body
	}
	if parameters := slices.Concat(e.pathParameters(), e.queryParameters(), e.headerParameters()); len(parameters) > 0 {
		operation["parameters"] = parameters
	}
	return operation
}

func (e *endpoint) pathParameters() (parameters []schema) {
	fields := fieldsOf(reflect.TypeOf(e.Request))
	for _, name := range e.wildcards {
		kind := reflect.TypeFor[string]()
		if f := findField(fields, name); f != nil && name != e.Token {
			kind = f.kind
		}
		s := schemaOf(kind, false)
		if s["type"] == "array" { // the path has one of its items
			s = s["items"].(schema)
		}
		if name == e.Token && len(e.Forms) > 0 {
			requests, _ := formNames(e.Forms)
			s["enum"] = requests
		}
		parameters = append(parameters, schema{"name": name, "in": "path", "required": true, "schema": s})
	}
	return parameters
}

func (e *endpoint) queryParameters() (parameters []schema) {
	for _, name := range strings.Fields(e.Query) {
		if findField(e.parameters, name) == nil {
			parameters = append(parameters, schema{"name": name, "in": "query", "schema": durationSchema()})
		}
	}
	for _, k := range e.parameters {
		p := schema{"name": k.key, "in": "query", "schema": schemaOf(k.kind, false)}
		if name, ok := strings.CutSuffix(k.key, "_ms"); ok {
			p["name"], p["schema"] = name, durationSchema()
		}
		if slices.Contains(strings.Fields(e.Required), k.key) {
			p["required"] = true
		}
		parameters = append(parameters, p)
	}
	return parameters
}

// headerMeanings describes the headers of requests, for people.
var headerMeanings = map[string]string{
	"Idempotency-Key": "key of the job, unless the body has one: the same key in the same queue is the same job, so that the request can be repeated",
	"Yard-Delay":      "delay before the job may start, such as 30s, unless the body has one",
	"Yard-Wait":       "how long to wait for the job's end, such as 30s, unless the body has it",
	"traceparent":     "W3C trace context of the job",
	"tracestate":      "W3C trace state of the job",
	api.HeaderReason:  "why the change is made, for the history",
}

// headerParameters returns the headers that the endpoint lists and, if it changes
// something, the reason for it.
func (e *endpoint) headerParameters() (parameters []schema) {
	names := strings.Fields(e.Headers)
	if e.method != http.MethodGet && len(names) == 0 {
		names = []string{api.HeaderReason}
	}
	for _, name := range names {
		parameters = append(parameters, schema{
			"name": name, "in": "header", "description": headerMeanings[name], "schema": schema{"type": "string"},
		})
	}
	return parameters
}

// requestBody returns the body of a request, or nil if it has none. The schema of the body
// is named after the endpoint, because each accepts its own fields.
func (e *endpoint) requestBody(named *components) schema {
	if len(e.Forms) > 0 {
		e.addForms(named)
		requests, _ := formNames(e.Forms)
		return schema{"content": content(named.add(reflect.TypeOf(e.Request).Name(), oneOf(e.Request, requests))), "required": true}
	}
	if !e.hasBody() || len(e.keys) == 0 {
		return nil
	}
	properties := schema{}
	for _, k := range e.keys {
		properties[k.key] = schemaOf(k.kind, false)
		if shape, ok := e.Shapes[k.key]; ok { // the type is any JSON
			properties[k.key] = shapeSchema(&shape)
		}
	}
	body := schema{"type": "object", "properties": properties}
	if len(e.Required) > 0 {
		body["required"] = strings.Fields(e.Required)
	}
	return schema{"content": content(named.add(exported(e.Name)+"Request", body)), "required": len(e.Required) > 0}
}

func (e *endpoint) responses(named *components) schema {
	success := schema{"description": "success"}
	switch {
	case e.Media != "":
		success["content"] = schema{e.Media: schema{"schema": schema{"type": "string", "format": "binary"}}}
	case len(e.Forms) > 0:
		_, replies := formNames(e.Forms)
		success["content"] = content(named.add(reflect.TypeOf(e.Reply).Name(), oneOf(e.Reply, replies)))
	default:
		success["content"] = content(named.addReply(e.Name, reflect.TypeOf(e.Reply)))
	}
	if e.Indexed {
		header := func(description string, value schema) schema {
			return schema{"description": description, "schema": value}
		}
		success["headers"] = schema{
			api.HeaderIndex: header("index of the last ledger entry that the response shows", schema{"type": "integer"}),
			api.HeaderEvent: header("number of the last event that the response shows", schema{"type": "integer"}),
			api.HeaderAsOf:  header("without a majority of the members, the time of that entry: more may have happened since", schema{"type": "string", "format": "date-time"}),
		}
	}
	responses := schema{
		strconv.Itoa(e.Status): success,
		"default": schema{
			"description": "error; 503 and 429 have the header Retry-After",
			"content":     content(named.add("Error", schemaOf(reflect.TypeFor[api.ErrorReply](), true))),
		},
	}
	if e.Content {
		binary := schema{
			"application/json":    schema{"schema": named.addReply(e.Name, nil)},
			"application/msgpack": schema{"schema": schema{"type": "string", "format": "binary"}},
		}
		responses["200"] = schema{"description": "all of it", "content": binary}
		responses["206"] = schema{"description": "the bytes that the header Range asks for", "content": binary}
	}
	if e.WaitReply != nil {
		responses["200"] = schema{
			"description": "the job, if the request waited for its end", "content": content(named.addReply(e.Name, reflect.TypeOf(e.WaitReply))),
		}
	}
	return responses
}

// shapeSchema returns the schema of a key of a request that is raw JSON in its struct.
func shapeSchema(shape *api.Shape) schema {
	s := schemaOf(reflect.TypeOf(shape.Of), false)
	if fields, ok := s["properties"].(schema); ok {
		delete(fields, shape.Without)
	}
	if shape.List {
		return schema{"type": "array", "items": s}
	}
	return s
}

// formNames returns the names of the requests and of the replies of forms.
func formNames(forms []api.Form) (requests, replies []string) {
	for _, f := range forms {
		requests, replies = append(requests, f.Request), append(replies, f.Reply)
	}
	return requests, replies
}

// oneOf returns the schema of an object that has one of the forms with these names, told
// apart by the first field of a struct.
func oneOf(of any, names []string) schema {
	forms, mapping := make([]schema, len(names)), schema{}
	for i, name := range names {
		forms[i], mapping[name] = schema{"$ref": schemaPath + name}, schemaPath+name
	}
	return schema{"oneOf": forms, "discriminator": schema{"propertyName": fieldsOf(reflect.TypeOf(of))[0].key, "mapping": mapping}}
}

// addForms adds the schemas that oneOf refers to.
func (e *endpoint) addForms(named *components) {
	for _, f := range e.Forms {
		named.add(f.Request, formSchema(e.Request, f.Request, f.Fields, false))
		named.add(f.Reply, formSchema(e.Reply, f.Reply, f.Fields, true))
	}
}

// formSchema returns the schema of an object with the fields of a struct and, first, that
// of another one, which has the form's name. A request need not have fields that may be
// null.
func formSchema(of any, name string, fields any, reply bool) schema {
	key := fieldsOf(reflect.TypeOf(of))[0].key
	s := objectOf(reflect.TypeOf(fields), reply)
	s["properties"].(schema)[key] = schema{"type": "string", "const": name}
	required := []string{key}
	for _, f := range fieldsOf(reflect.TypeOf(fields)) {
		if !f.optional && (reply || f.kind.Kind() != reflect.Pointer) {
			required = append(required, f.key)
		}
	}
	s["required"] = required
	return s
}
