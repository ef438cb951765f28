// Package store is the contract between idempotency keys and the place where they are remembered.
//
// A store keeps one [Record] per [ID]. A record begins its life when [Store.Begin] claims the ID for a run, and it
// ends when its retention has passed. In between it is Running, Abandoned (a run began and its end is not known),
// Released (a run ended and nothing happened) or Done (a run ended and its outcome is kept):
//
//	            Begin                Finish
//	Absent ───────────▶ Running ───────────────▶ Done ─────────────┐
//	   ▲                 │   ▲  ╲                  ▲               │
//	   │          crash, │   │   ╲ Finish          │ Finish,       │
//	   │  end of a lease │   │    ▼                │ Resolve       │ retention
//	   │                 ▼   │   Released ─────────┼───────────────┤
//	   │          Abandoned ─┘ ▲ (Begin: Running)  │               │
//	   │              └────────┴───────────────────┘               │
//	   └───────────────────────────────────────────────────────────┘
//
// An Abandoned record becomes Running again only by a Begin that permits a takeover.
//
// # Guarantees
//
// For one ID at most one token holds the claim at a time, whatever number of callers and processes ask. Every write
// after Begin names the token of the claim it belongs to, and a store refuses it once another claim has taken its
// place. An outcome that Finish has accepted is what every later Begin and Get answers until it expires.
//
// # Writing a store
//
// Implement [Store], and of the optional powers [Waiter], [Renewer], [Lister] and [Resolver] those the place can bear;
// then hand it to storetest.Run, which has a case for each sentence here. Stores shared by processes need Renewer and
// decide by lease which runs are abandoned; a store of one process may decide it by its own restart.
//
// # Design
//
// Expected results are values: a duplicate is a record, not an error. An error other than [ErrLost], [ErrFull],
// [ErrUnreadable] and [ErrUnusable] says only that the machinery failed; whether the operation took effect is then not
// known, and callers settle it by sending the same token again, or by reading the record.
//
// The handler's run is in its context as a [Run], so that a store with transactions can commit the outcome together
// with the business write without knowing what kind of call it is.
package store
