// Package boltcheck verifies the structure of a bbolt file before bbolt opens
// it.
//
// Bbolt has checksums only on its two meta pages, reads through a memory map,
// and panics in goroutines of its own on invalid pages; if the file was
// truncated, the kernel kills the process. This package reads the file without
// bbolt, page by page from the root, and checks only the structure: that each
// page is within the file, has the right type and belongs to one tree, and that
// keys are in order. Whether the values are those that were written is for the
// caller to check.
//
//	meta 0, meta 1 ── the newer one's root ──▶ branch pages ──▶ leaf pages ──▶ buckets' roots …
//
// A damaged meta page is an error even though bbolt would use the other one:
// that one is the file as of the previous transaction, without what was last
// synced. A power loss does not damage a meta page, because its used part fits
// into one sector.
package boltcheck
