// Command node is the program yardmaster, under the name that its builds from source have used.
package main

import "github.com/yardmaster-dev/yardmaster/cmd/internal/program"

// version is set by the linker.
var version string

func main() { program.Main(version) }
