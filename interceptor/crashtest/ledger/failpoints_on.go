//go:build oncerpc_failpoints

package main

import "github.com/oncerpc/oncerpc/store/boltstore"

// compiledIn says that boltstore has its points.
const compiledIn = true

func (t *trap) arm() { boltstore.Failpoint = t.at }
