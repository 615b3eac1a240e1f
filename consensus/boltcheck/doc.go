// Package boltcheck tells whether a bbolt file is whole, before bbolt opens it.
//
// Bbolt has checksums on its two meta pages only, reads through a memory map,
// and panics, on goroutines of its own, over pages that make no sense; of a
// file that was cut short the kernel takes the whole process. So this package
// reads the file by itself, page by page as bbolt would find them from the
// root, and judges form alone: that each page is where it should be, is what it
// should be and belongs to one tree, and that keys are in order. Whether the
// values are what was once written is for those who know them.
//
//	meta 0, meta 1 ── the newer one's root ──▶ branch pages ──▶ leaf pages ──▶ buckets' roots …
//
// A damaged meta page is told even though bbolt would fall back on the other
// one: that is the file as it was a transaction ago, without what was last
// synced. A loss of power leaves no such page, because what counts of it lies
// within one sector.
package boltcheck
