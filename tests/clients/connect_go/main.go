// Calls the daemon with Connect's client for Go, by each protocol. The argument is the daemon's address.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	jigv1 "jig.test/client/gen/jig/v1"
	"jig.test/client/gen/jig/v1/jigv1connect"
)

func main() {
	url := "http://" + os.Args[1]
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	http2 := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	cases := []struct {
		name    string
		client  *http.Client
		options []connect.ClientOption
	}{
		{"Connect with protobuf over HTTP/1.1", http.DefaultClient, nil},
		{"Connect with JSON over HTTP/1.1", http.DefaultClient, []connect.ClientOption{connect.WithProtoJSON()}},
		{"Connect with GET", http.DefaultClient, []connect.ClientOption{connect.WithHTTPGet()}},
		{"Connect over HTTP/2", http2, nil},
		{"gRPC-Web over HTTP/1.1", http.DefaultClient, []connect.ClientOption{connect.WithGRPCWeb()}},
		{"gRPC-Web over HTTP/2", http2, []connect.ClientOption{connect.WithGRPCWeb()}},
		{"gRPC", http2, []connect.ClientOption{connect.WithGRPC()}},
	}
	passed, failed := 0, 0
	for _, c := range cases {
		if err := try(c.client, url, c.options); err != nil {
			failed++
			fmt.Printf("%s: %v\n", c.name, err)
		} else {
			passed++
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed != 0 {
		os.Exit(1)
	}
}

func try(client *http.Client, url string, options []connect.ClientOption) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tools := jigv1connect.NewToolServiceClient(client, url, options...)
	daemon := jigv1connect.NewDaemonServiceClient(client, url, options...)
	processes := jigv1connect.NewProcessServiceClient(client, url, options...)

	result, err := tools.Run(ctx, connect.NewRequest(&jigv1.RunRequest{Command: proto.String("echo hello")}))
	if err != nil || result.Msg.GetStdout() != "hello\n" {
		return fmt.Errorf("unary call: %v, %w", result, err)
	}
	info, err := daemon.GetInfo(ctx, connect.NewRequest(&jigv1.GetInfoRequest{}))
	if err != nil || info.Msg.GetVersion() == "" {
		return fmt.Errorf("call without side effects: %v, %w", info, err)
	}

	_, err = tools.ReadFile(ctx, connect.NewRequest(&jigv1.ReadFileRequest{Path: "missing"}))
	if reason := reasonOf(err); connect.CodeOf(err) != connect.CodeNotFound || reason != "FILE_NOT_FOUND" {
		return fmt.Errorf("error details: %q, %w", reason, err)
	}

	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	_, err = tools.Run(short, connect.NewRequest(&jigv1.RunRequest{Command: proto.String("sleep 60")}))
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		return fmt.Errorf("deadline: %w", err)
	}

	stream, err := processes.Start(ctx, connect.NewRequest(&jigv1.StartRequest{Command: proto.String("echo a; echo b")}))
	if err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	output := ""
	for stream.Receive() {
		output += string(stream.Msg().GetStdout().GetData())
	}
	if stream.Err() != nil || output != "a\nb\n" {
		return fmt.Errorf("stream: %q, %w", output, stream.Err())
	}
	return stream.Close()
}

func reasonOf(err error) string {
	var failure *connect.Error
	if !errors.As(err, &failure) {
		return ""
	}
	for _, detail := range failure.Details() {
		if message, err := detail.Value(); err == nil {
			if info, ok := message.(*errdetails.ErrorInfo); ok {
				return info.GetReason()
			}
		}
	}
	return ""
}
