// Command node is the program yardmaster. Builds from source use this directory; "go install" needs
// cmd/yardmaster, because it names a program after its directory.
package main

import "github.com/yardmaster-dev/yardmaster/cmd/internal/program"

// version is set by the linker.
var version string

func main() { program.Main(version) }
