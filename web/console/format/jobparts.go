package format

import "encoding/json"

// JobParts returns what a job's JSON has for the fields of a form: the function, the params as
// indented JSON, and an indented object of all other options, "" for what it lacks. It returns a
// job that is no object as the options.
func JobParts(job json.RawMessage) (function, params, options string) {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(job, &parts); err != nil {
		return "", "", string(job)
	}
	_ = json.Unmarshal(parts["function"], &function) // else "": the node checks it
	if parts["params"] != nil {
		params = Indented(parts["params"])
	}
	delete(parts, "function")
	delete(parts, "params")
	if len(parts) > 0 {
		rest, err := json.Marshal(parts)
		if err == nil {
			options = Indented(rest)
		}
	}
	return function, params, options
}
