// A gRPC client generated from the published proto of agent-sandbox, and the file API over HTTP.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	processv1 "agentsandbox/process/v1"
)

var passed, failed int

func check[T comparable](name string, actual, expected T) {
	if actual == expected {
		passed++
		return
	}
	failed++
	fmt.Printf("FAIL %s: %v, not %v\n", name, actual, expected)
}

func shell(script string) *processv1.ProcessConfig {
	return &processv1.ProcessConfig{Command: []string{"/bin/sh", "-c", script}}
}

// collect reads a process to its end, and calls act once its output contains ready.
func collect(stream grpc.ServerStreamingClient[processv1.StartResponse], ready string, act func(id int32)) (string, int32) {
	var id, exit int32 = 0, -1
	var stdout strings.Builder
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stdout.String(), exit
		}
		if err != nil {
			return err.Error(), exit
		}
		switch event := event.Event.(type) {
		case *processv1.StartResponse_Init:
			id = event.Init.ProcessId
		case *processv1.StartResponse_Stdout:
			stdout.Write(event.Stdout)
		case *processv1.StartResponse_Exit:
			exit = event.Exit.ExitCode
		}
		if act != nil && strings.Contains(stdout.String(), ready) {
			act(id)
			act = nil
		}
	}
}

func processes(client processv1.ProcessServiceClient) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	cwd := "go"
	config := shell("cat data.txt; printf \"$WORD\" >&2; exit 3")
	config.Cwd, config.EnvVars = &cwd, map[string]string{"WORD": "hello"}
	response, err := client.Execute(ctx, &processv1.ExecuteRequest{Config: config})
	check("Execute", status.Code(err), codes.OK)
	check("stdout", string(response.GetStdout()), "content")
	check("stderr", string(response.GetStderr()), "hello")
	check("exit code", response.GetExitCode(), 3)

	stream, err := client.Start(ctx, &processv1.StartRequest{Config: shell("echo ready; cat; exit 4")})
	check("Start", status.Code(err), codes.OK)
	output, exit := collect(stream, "ready", func(id int32) {
		input := &processv1.WriteStdinRequest_Input{Input: []byte("typed")}
		_, err := client.WriteStdin(ctx, &processv1.WriteStdinRequest{ProcessId: id, Payload: input})
		check("WriteStdin", status.Code(err), codes.OK)
		eof := &processv1.WriteStdinRequest_Eof{Eof: &emptypb.Empty{}}
		_, err = client.WriteStdin(ctx, &processv1.WriteStdinRequest{ProcessId: id, Payload: eof})
		check("eof", status.Code(err), codes.OK)
	})
	check("output", output, "ready\ntyped")
	check("exit", exit, 4)

	script := "echo ready; exec sleep 300"
	pty := &processv1.PTY{Cols: 80, Rows: 24}
	stream, err = client.Start(ctx, &processv1.StartRequest{Config: shell(script), Pty: pty})
	check("Start with a terminal", status.Code(err), codes.OK)
	output, exit = collect(stream, "ready", func(id int32) {
		_, err := client.ResizeTTY(ctx, &processv1.ResizeTTYRequest{ProcessId: id, Cols: 100, Rows: 50})
		check("ResizeTTY", status.Code(err), codes.OK)
		signal := processv1.Signal_SIGNAL_SIGKILL
		_, err = client.SendSignal(ctx, &processv1.SendSignalRequest{ProcessId: id, Signal: signal})
		check("SendSignal", status.Code(err), codes.OK)
	})
	check("exit by a signal", exit, 137)

	_, err = client.SendSignal(ctx, &processv1.SendSignalRequest{ProcessId: 1, Signal: processv1.Signal_SIGNAL_SIGINT})
	check("an unknown process", status.Code(err), codes.NotFound)
	short, cancelShort := context.WithTimeout(ctx, time.Second)
	defer cancelShort()
	_, err = client.Execute(short, &processv1.ExecuteRequest{Config: shell("sleep 300")})
	check("a deadline", status.Code(err), codes.DeadlineExceeded)
}

func request(method, url, body string) (int, string) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		panic(err)
	}
	return response.StatusCode, string(content)
}

func files(base string, during func()) {
	code, _ := request("PUT", base+"/files/go/data.txt?mode=0600", "content")
	check("PUT", code, 204)
	code, content := request("GET", base+"/files/go/data.txt", "")
	check("GET", fmt.Sprint(code, content), "200content")
	during()
	code, _ = request("DELETE", base+"/files/go?recursive=true", "")
	check("DELETE", code, 204)
	code, _ = request("HEAD", base+"/files/go", "")
	check("HEAD", code, 404)
}

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	client := processv1.NewProcessServiceClient(connection)
	files("http://"+os.Args[2]+"/v1", func() { processes(client) })
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed != 0 {
		os.Exit(1)
	}
}
