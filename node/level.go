package node

// protocolLevel stands for all that two members have to understand alike: what
// they say when they meet, the messages between them, the entries of the log
// and the ledger's encoded form. Members of another level refuse this one, and
// it them. It is raised with any of these; its test knows them.
const protocolLevel = 1
