// Package query is the language in which people and programs search for jobs:
//
//	queue:mail state:failed error:timeout since:1h customer:acme
//	(tag:eu,us or meta.region:eu*) -worker:overhop/* took:>2s sort:ended
//
// A query is a list of terms, all of which a job must match. "or" between terms
// binds less tightly; "not" or a leading "-" excludes; parentheses group. A term is
// field:value, and matches if one of the values does that are separated by commas:
//
//	field:text      the text itself; field:"two words" if it has spaces or punctuation
//	field:text*     a text that begins so; field:* any text
//	field:>3        a number, time or duration that is larger; likewise >=, < and <=
//	field:2..5      a range that includes both ends; 2..<5 excludes the upper one
//	word            finds an id, a key or a word of the error's message
//	name:value      with a name that is no field: the metadata or an indexed param
//
// A date or a time of day is all of its day, minute or second: created:2026-11-01
// matches all jobs of that day, created:>2026-11-01 those of later days. 1h and 3d are the
// moments an hour and three days ago; alone they match what was later.
//
// [Parse] returns the [Query], or a [SyntaxError] that has the position of what is wrong, and what
// to write instead. [Query.String] returns the one canonical text of a query, which depends
// neither on the time nor on the zone in which it was written. [Query.Match] evaluates a query
// on one document. [Complete] returns what may follow at a position of the text.
//
// The package is pure: the caller passes the time and the time zone.
package query
