// Package check judges the behavior of a cluster by evidence from outside. It
// uses no code of the cluster: each check is a function from what publishers,
// witnesses, samples and history report to a list of violations.
package check
