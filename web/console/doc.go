// Package console serves the console: pages in which people see what a yard does, and act
// on it. Every node serves it, from its own ledger and through the endpoints of the API.
//
// A page is a function of package pages that loads data, and a template. A form is an act of
// package acts. Both send requests with package calls. The server renders the whole page,
// so that it can be read, and its forms be sent, without scripts. With scripts, the page
// opens a stream of server-sent events at its own address: a [hub] renders the page's main
// part again when the ledger has changed, at most once a second for all browsers that show
// the same page to users with the same permissions, and the browser replaces what differs.
//
// Text from users is data: templates escape it, and package format makes control characters
// and direction marks visible and cuts what is long. The content security policy allows only
// the scripts and styles of this package.
package console
