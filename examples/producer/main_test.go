package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// A producer that is stopped while no node answers ends without an error: its
// last job was not accepted, and was not reported as such.
func TestProduce_Stopped(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- produce(ctx, options{nodes: silent.Addr().String(), queue: "mail", functions: "echo", every: time.Second})
	}()
	c, err := silent.Accept() // the producer is connected
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestProduce_TokenFile(t *testing.T) {
	err := produce(t.Context(), options{nodes: "127.0.0.1:1", functions: "echo", every: time.Second, tokenFile: "none.txt"})
	if err == nil || !strings.Contains(err.Error(), "token-file") {
		t.Errorf("a token file that is not there: %v", err)
	}
}
