// Package boltstore keeps idempotency records in an embedded bbolt file.
//
// [Open] opens or creates the file and locks it: one process uses it at a time, and within the process one [Store],
// which several servers may share. A claim and an outcome are durable when Begin and Finish return. What runs at the
// same time shares a commit; a duplicate costs none.
//
// # Guarantees
//
// A claim that was running when its process ended is abandoned as soon as the file is opened again: the file's lock
// proves that the process is gone, so that no lease is needed, and [store.Claim.Lease] is ignored. Outcomes stand until
// they expire, to the nanosecond, on a clock that starts no earlier than the last commit in the file and then runs
// monotonically.
//
// A commit that fails for want of room writes nothing: Begin answers [store.ErrFull], and everything works on once there
// is room. After any other error of a commit nobody knows what a crash would leave, so the store is latched: all
// answers are [store.ErrUnusable], replays included, until it is closed and opened again.
//
// A record whose bytes are damaged, or that a newer version wrote, is [store.ErrUnreadable] and never absent. Open goes
// through all pages of the file first and refuses one in which a page, or a claim, is damaged.
//
// # Transactions
//
// [Transact] commits what a closure writes and the outcome of its guarded call together, so that after a crash both are
// there or neither. [TransactRepeatable] does so for several closures in one commit; [Store.View] reads what they
// wrote. [New] opens a store in a database of the application's own.
//
// A closure holds the lock of all writes. What needs this store waits for it: other transactions, new claims that are
// durable, ends of runs, Close. Nothing in a closure may need this store, then, or it waits for itself: no Begin, Finish,
// Resolve, List or Close, no transaction outside of the one at hand, no db.Update, and no call to a server that this
// store guards. Get answers from memory and View reads what was before; both may wait too, so keep to tx. A closure that
// asks the network holds up everybody. tx and all bytes it gives are invalid afterwards. A commit handler of tx runs
// before the call is answered, in another goroutine, and is bound by the same; it must not fail.
//
// A claim that may vanish with the process ([store.Claim.Volatile], which is what the policy in_transaction asks for)
// is kept in memory, so that such a call makes one commit instead of two. It does take a commit when it takes over an
// abandoned claim.
//
// # Limits
//
// An older copy of the file has forgotten what came after it was made; a clock that was far ahead in an earlier opening
// stays there. A network file system is no place for it.
//
// # Operating
//
// The file grows with what it holds, by a sixteenth at a time and at most 16 MiB, and never shrinks: the space of
// records that have expired is swept by itself, a range at a time, and used again. Under a steady load of records of
// mixed sizes up to some KiB it stays within twice its live data; outcomes of hundreds of KiB lie in pages side by
// side, which are harder to find among free ones, and make it larger. [WithMaxSize] bounds it. A store at its bound
// refuses new claims with [store.ErrFull], which the interceptor answers with OVERLOADED and a wait of five seconds,
// while runs that are under way end and are replayed as always; claims are accepted again once records have expired, or
// when the store is opened with a higher bound. A reader that stays in [Store.View] for long keeps pages from being
// used again. [Store.Stats] tells how much is live and how much is free: an alert on Live against MaxSize comes before
// the refusals.
//
// # Design
//
// A B+tree with digests as keys grows slower with every record, because each write touches another page. Here records
// are appended, the way to them is kept in memory, and what expires together lies together. The file has one top-level
// bucket, "oncerpc":
//
//	meta       version      8 bytes: 1; a newer one is refused. A CRC-32C of key and value follows each value here
//	           salt         16 bytes: of the hash by which IDs are found
//	           incarnation  8 bytes: how often the store was opened
//	           time         8 bytes: when the last commit was made, in nanoseconds
//	           records      8 bytes: how many records there are in segments
//	           claims       8 bytes: how many slots are not free
//	running    slot (4)     a claim that is Running or Abandoned, or one byte 0: the slot is free
//	segments   number (8)   a bucket:
//	               00                      segment version 1, stream
//	               position (2) hash (8)   a record that is Done or Released
//	               fe position (2)         nothing: the record was deleted after the segment was sealed
//	               ff                      index of a sealed segment
//
// All numbers are big-endian. A record is a version (1), a CRC-32C of what follows (4), the ID (32), and a marshalled
// oncerpc.v1.Record; the index of a segment is a version (1), a CRC-32C of what follows (4), the latest expiry (8), and
// position (2) and hash (8) of each record; the highest bit of the position is set if it is Released. The hash is the
// first 8 bytes of SHA-256 of salt and ID.
//
// A claim takes the lowest free slot. The commit that writes its outcome frees the slot, so that the bucket holds the
// claims that stand and little else, and opening finds them without a search.
//
// Records go to the end of the open segment of their stream, which is the power of two of their retention in seconds. A
// segment is sealed when it is full, or when a sixteenth of its stream's retention has passed, and dropped as a bucket
// when its last record has expired, inside a commit that is made anyway, or by itself when the store is idle. A record
// that is replaced is deleted by the commit that writes its successor: an ID has one record at most, and none comes
// back when its successor has expired.
//
// Memory holds the claims and, for each record, eight bytes: a part of its hash, and its place. Every hit is verified in
// the record. Memory learns of a commit when it is durable, and answers are given by memory, because bbolt shows a commit
// to readers before that.
//
// One goroutine, the committer, puts whatever is queued into one transaction. Operations never fail each other: a
// duplicate and a lost token are results, and do not roll back. A transaction of a closure takes what is queued along,
// once the closure has succeeded; if it is rolled back after all, for want of room, the committer's transaction follows.
//
// A claim in memory leaves it when the commit of its end is durable, in one step with that end becoming known. It is
// made in the same way, where memory shows that there is no record and the transaction under way does not work on its
// ID; otherwise the committer decides.
package boltstore
