package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// Told to stop while nobody answers, the producer ends without an error: the job
// that it had in hand was never accepted, and nobody was told that it was.
func TestProduce_Stopped(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- produce(ctx, options{nodes: deaf.Addr().String(), queue: "mail", functions: "echo", every: time.Second})
	}()
	c, err := deaf.Accept() // it is at it
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
