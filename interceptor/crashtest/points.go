package crashtest

// Points are where the server ends itself. Those that begin with create, open, commit, sweep and close are in boltstore
// or, for what bbolt does within a commit, around its writes to the file; the others are in ledger.
var Points = []string{
	"create.empty",    // the new file is there, under another name
	"create.complete", // it is laid out and durable
	"create.linked",   // it has its name
	"create.unlinked", // it has no other; the folder is not synced
	"open.loaded",
	"open.begun", // a new incarnation is durable
	"begin.before",
	"begin.after",
	"handler.begun",
	"handler.effect",    // the effect outside has happened
	"transact.written",  // the money is moved in the transaction
	"transact.returned", // it is committed with its outcome, and the handler has not returned
	"finish.before",
	"finish.after",
	"answer.sent",
	"commit.applied", // all is written into the transaction
	"commit.soon",    // up to a millisecond later, on another thread
	"commit.pages",   // bbolt is about to write pages
	"commit.meta",    // they are synced
	"commit.torn",    // half of the meta page is written
	"commit.unsynced",
	"commit.durable", // memory and callers do not know yet
	"sweep.dropped",
	"sweep.durable",
	"close.refusing",
	"close.stopped",
	"close.written",
}

// Kills by the test's process.
const (
	AnswerReceived = "answer.received" // a client has just got a definite answer
	AnyTime        = "any time"
)

// Bugs that can be planted in the server. The audit has to find each.
const (
	RecordAfterCommit  = "record-after-commit"  // the business write commits first, the record by itself later
	TokenUnchecked     = "token-unchecked"      // Finish ends whatever claim stands
	HoldRerun          = "hold-rerun"           // an abandoned claim is taken over under HOLD
	AnswerBeforeCommit = "answer-before-commit" // Finish says nil before it is durable
)

// The ledger in the file. Every account begins with the same balance.
const (
	Accounts = 8
	Balance  = 1_000_000
)

// The buckets of the ledger: account to balance, and the name of a call to how often it moved money or was declined.
// Numbers have 8 bytes, big-endian.
var (
	AccountsBucket = []byte("accounts")
	JournalBucket  = []byte("journal")
	DeclinedBucket = []byte("declined")
)
