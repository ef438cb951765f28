//go:build !oncerpc_failpoints

package main

// compiledIn says that boltstore has its points.
const compiledIn = false

func (t *trap) arm() {}
