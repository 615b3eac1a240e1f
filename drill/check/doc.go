// Package check holds what a yard tells against what others saw of it. It knows
// no code of the yard: it is given what publishers, witnesses and history say,
// and each check is a function from that to what is wrong with it.
package check
