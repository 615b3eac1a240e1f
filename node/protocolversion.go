package node

// protocolVersion covers everything that two members must interpret alike: their
// handshake, the messages between them, the entries of the Raft log and the encoded
// form of the ledger. Members with different versions refuse each other. It must be
// raised with a change to any of these; TestProtocolVersion lists them.
const protocolVersion = 8
