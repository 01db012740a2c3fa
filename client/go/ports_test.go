package jig_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	jig "jig.example/client"
	"jig.example/client/jigv1"
)

// serve starts a Python server, and waits until it listens on port 8000.
func serve(t *testing.T, client *jig.Client, body string) *jig.Process {
	t.Helper()
	script := "import socket\nlistener = socket.create_server(('127.0.0.1', 8000))\n" +
		"print('ready', flush=True)\n" + body
	process, err := client.Start(timed(t), &jigv1.StartRequest{Argv: []string{"python3", "-c", script}})
	check(t, err)
	t.Cleanup(process.Close)
	readUntil(t, process, "ready")
	return process
}

const echoOnce = `
while True:
    stream = listener.accept()[0]
    while data := stream.recv(65536): stream.sendall(data)
    stream.close()
`

func TestPorts(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	process := serve(t, client, echoOnce)

	conn, err := client.DialPort(ctx, process.ID, 8000)
	check(t, err)
	var _ net.Conn = conn
	expect(t, conn.RemoteAddr().String(), "127.0.0.1:8000")
	sent := bytes.Repeat([]byte("0123456789abcde\n"), 1<<18)
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		written <- errors.Join(err, conn.CloseWrite())
	}()
	received, err := io.ReadAll(conn)
	check(t, err)
	check(t, <-written)
	if !bytes.Equal(received, sent) {
		t.Fatal(len(received), "bytes")
	}
	check(t, conn.Close())

	conn, err = client.DialPort(ctx, process.ID, 8000)
	check(t, err)
	check(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	check(t, conn.Close())

	_, err = client.DialPort(ctx, process.ID, 8001)
	expectReason(t, err, jig.PortRefused)
	_, err = client.DialPort(ctx, "none", 8000)
	expectReason(t, err, jig.ProcessNotFound)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := client.DialPort(ended, process.ID, 8000); err == nil {
		t.Fatal("connected")
	}
}

func TestPortsServeHTTP(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	process := serve(t, client, `
while True:
    stream = listener.accept()[0]
    path = stream.recv(65536).split()[1]
    stream.sendall(b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n' % len(path) + path)
    stream.close()
`)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return client.DialPort(ctx, process.ID, 8000)
	}}
	for number := range 3 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint("http://sandbox/", number), nil)
		check(t, err)
		response, err := (&http.Client{Transport: transport}).Do(request)
		check(t, err)
		text, err := io.ReadAll(response.Body)
		check(t, err)
		check(t, response.Body.Close())
		expect(t, string(text), fmt.Sprint("/", number))
	}
}

func TestWrittenBytesArriveAfterClose(t *testing.T) {
	client := open(t, socket)
	process := serve(t, client, `
stream = listener.accept()[0]
received = 0
while data := stream.recv(65536): received += len(data)
print('received', received, flush=True)
`)
	conn, err := client.DialPort(timed(t), process.ID, 8000)
	check(t, err)
	_, err = conn.Write([]byte(strings.Repeat("x", 1_000_000)))
	check(t, err)
	check(t, conn.Close())
	readUntil(t, process, "received 1000000")
}

func TestEndOfAProcessEndsItsConnections(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	process := serve(t, client, "stream = listener.accept()[0]\nprint('accepted', flush=True)\nimport time; time.sleep(1000)")
	conn, err := client.DialPort(ctx, process.ID, 8000)
	check(t, err)
	// The kernel resets a connection that no process has accepted.
	readUntil(t, process, "accepted")
	process.Close()
	received, err := io.ReadAll(conn)
	expect(t, len(received), 0)
	if err != nil {
		expectReason(t, err, jig.ProcessEnded)
	}
	waitForEnd(t, client)
	_, err = client.DialPort(ctx, process.ID, 8000)
	expectReason(t, err, jig.ProcessEnded)
}
