// Package soak runs a cluster of real processes under a mixed load for minutes or hours,
// kills its nodes now and then, and checks that nothing grows without bound and no
// accepted job is lost.
//
// [Run] starts three nodes with small bounds, a load that is enqueued at a fixed rate
// whether or not the cluster keeps up, and workers. Each job has an id that contains its
// number, so that a [jobTable] can account for millions of them with 16 bytes each. What
// happened to a job is reported by three independent sources: the answer to its
// producer, the handlers that ran it, and the streams YARD_EVENTS and YARD_DLQ, which
// are read while they are written, because their bounds remove old messages. At the end
// every accepted job must have exactly one end.
//
// Meanwhile a sampler records memory, disk, streams, latencies and lag. [Judge] decides
// for each series whether it has levelled off. The report is a table per minute, a
// picture, and the samples as CSV and JSON.
package soak
