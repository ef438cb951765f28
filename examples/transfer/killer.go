package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"
)

// killable is a server in a process of its own, which is started again whenever it was killed.
type killable struct {
	addr string
	file string
	args []string

	mu  sync.Mutex
	cmd *exec.Cmd
}

func startKillable(file string, without bool) (*killable, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0") // a free port, which the server uses again and again
	if err != nil {
		return nil, err
	}
	k := &killable{addr: lis.Addr().String(), file: file}
	if err := lis.Close(); err != nil {
		return nil, err
	}
	k.args = []string{"-serve", k.addr, "-file", file}
	if without {
		k.args = append(k.args, "-without-transaction")
	}
	return k, k.start()
}

func (k *killable) start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cmd = exec.Command(program, k.args...) //nolint:gosec // it is this program
	k.cmd.Stderr = os.Stderr
	return k.cmd.Start()
}

func (k *killable) kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.cmd.Process.Kill()
	_ = k.cmd.Wait() // it was killed, as it says
	return err
}

// killUntil kills the server at random and starts it again, until ctx ends. It returns how often.
func (k *killable) killUntil(ctx context.Context) (kills int) {
	for {
		select {
		case <-ctx.Done():
			return kills
		case <-time.After(100*time.Millisecond + rand.N(200*time.Millisecond)):
		}
		if errors.Join(k.kill(), k.start()) != nil {
			return kills
		}
		kills++
	}
}

func (k *killable) stop() error { return k.kill() }
