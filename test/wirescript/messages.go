package wirescript

import "github.com/yardmaster-dev/yardmaster/edge/overhop"

// typeByName maps the names of messages to their types.
var typeByName = map[string]int64{
	"HELLO": overhop.THello, "REGISTER": overhop.TRegister, "PING": overhop.TPing, "QUEUE": overhop.TQueue,
	"LSQUEUE": overhop.TLsQueue, "SUBSCRIBE": overhop.TSubscribe, "UNSUBSCRIBE": overhop.TUnsubscribe,
	"CREDIT": overhop.TCredit, "ADDQUEUE": overhop.TAddQueue, "STATUS": overhop.TStatus, "RMQUEUE": overhop.TRmQueue,
	"PAUSE": overhop.TPause, "RESUME": overhop.TResume, "ENQUEUE": overhop.TEnqueue, "JOB": overhop.TJob,
	"RMJOB": overhop.TRmJob, "LSJOB": overhop.TLsJob, "QSTATS": overhop.TQStats,

	"ACK": overhop.TAck, "NACK": overhop.TNack, "BEAT": overhop.TBeat, "PROGRESS": overhop.TProgress, "LOG": overhop.TLog,
	"DONE": overhop.TDone, "FAIL": overhop.TFail, "AWAIT": overhop.TAwait, "GOODBYE": overhop.TGoodbye,
	"CANCEL": overhop.TCancel, "RETRYJOB": overhop.TRetryJob, "CLRQUEUE": overhop.TClrQueue, "OBLITERATE": overhop.TObliterate,

	"OK": overhop.TOK, "ERR": overhop.TErr, "HI": overhop.THi, "IDENT": overhop.TIdent, "PONG": overhop.TPong,
	"QUEST": overhop.TQuest, "RECALL": overhop.TRecall, "CREDITS": overhop.TCredits, "DRAIN": overhop.TDrain,
	"BYE": overhop.TBye, "JOBEND": overhop.TJobEnd,
}

var nameByType = func() map[int64]string {
	names := make(map[int64]string)
	for name, t := range typeByName {
		names[t] = name
	}
	return names
}()

// isPush reports whether the server sends messages of type t unrequested, under
// the id of pushes.
func isPush(t int64) bool { return t == overhop.TIdent || t >= overhop.TQuest }
