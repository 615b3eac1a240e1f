// Package session signs users in to the console, and finds the user of a request.
//
// A session is a signed cookie, which every node of the yard can check without a request to
// another. The forms of a page carry a token that belongs to the session.
package session
