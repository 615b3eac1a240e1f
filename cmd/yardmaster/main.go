// Command yardmaster is the program yardmaster, for "go install".
package main

import "github.com/yardmaster-dev/yardmaster/cmd/internal/program"

// version is set by the linker.
var version string

func main() { program.Main(version) }
