// Package crashtest kills a guarded server, again and again, and audits what its clients were told.
//
// The server is a real process (the program in ledger): gRPC over TCP, the server interceptor, and a bbolt file that
// holds the records and, beside them, accounts and a journal. Clients with the client interceptor move money through
// it, in and out of transactions, under HOLD and under RERUN, several of them now and then with one key. The process
// ends by SIGKILL at a named point (see [Points]) or at any moment, and is started again at once, until every client
// has a definite answer to every call.
//
// What the server does outside of its file is kept by the test's process: a handler writes "effect" into a pipe, and
// what is in a pipe survives its writer.
//
// # What is audited
//
//   - Money is conserved, and the balances are those that the journal adds up to.
//   - Transactional methods: a key is in the journal at most once; exactly once if it was answered OK; not at all if it
//     was answered OUTCOME_UNKNOWN, which a method with in_transaction never is.
//   - HOLD: a key had at most one effect, and exactly one if it was answered OK. RERUN: at most one for each attempt.
//   - All answers to a key are equal, in response, code, message, details and metadata; those marked unrecorded apart.
//   - After the last graceful stop nothing is running in the file, what is abandoned is what was answered
//     OUTCOME_UNKNOWN, and bbolt finds nothing wrong with the file.
//   - A fresh process replays every answer.
//
// The audit can fail: TestPlantedBugs runs servers with one bug each (see [RecordAfterCommit]) and requires that it does.
//
// # How to run it
//
//	go test ./interceptor/crashtest                               a sample, and the planted bugs
//	go test ./interceptor/crashtest -kills 2000 -timeout 30m -v   all points, at least 50 times each
//
// The test builds ledger under the build tag oncerpc_failpoints, which compiles the points of boltstore in.
package crashtest
