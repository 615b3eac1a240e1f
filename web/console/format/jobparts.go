package format

import "encoding/json"

// JobParts splits a job's JSON into the fields of a form: the function, the params as indented JSON,
// and an indented object with all other options. A field is "" if the job has no such part. If the
// job is not an object, JobParts returns all of it as the options.
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
