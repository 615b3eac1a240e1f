package node

import (
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// otherNames are keys of Overhop's own server, and of ours in former days, with
// what does their work here.
var otherNames = map[string]string{
	"logging.level":                "node.log_level does that",
	"logging.human_friendly":       "node.log_format does that",
	"heartbeat.interval_ms":        "there is nothing to set: the yard's clockwork is fixed",
	"storage.engine":               "there is nothing to choose: jobs lie in JetStream",
	"storage.path":                 "node.data_dir does that",
	"storage.self_debug_path":      "there is no such mode",
	"storage.sled.cache_capacity":  "there is no sled; nats.max_store_bytes bounds what streams fill on disk",
	"storage.sled.mode":            "there is no sled, and nothing to set",
	"pagination.default_page_size": "pagination.page_size does that",
}

// strangeKeys says which keys of a file are none, all of them at once; "" if
// there are none.
func strangeKeys(unknown []toml.Key) string {
	var told []string
	for i, key := range unknown {
		name := key.String()
		if i+1 < len(unknown) && strings.HasPrefix(unknown[i+1].String(), name+".") {
			continue // a table: its keys say more
		}
		says := "unknown key " + name
		if instead, ok := otherNames[name]; ok {
			says += fmt.Sprintf(" (here %s)", instead)
		}
		told = append(told, says)
	}
	return strings.Join(told, ", ")
}
