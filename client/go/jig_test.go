package jig_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	jig "jig.example/client"
	"jig.example/client/jigv1"
)

// The daemon of the tests, whose program is JIG_TEST_JIGD.
var (
	program = "jigd"
	socket  string
	port    string
)

func TestMain(m *testing.M) {
	if path := os.Getenv("JIG_TEST_JIGD"); path != "" {
		program = path
	}
	for _, name := range []string{"JIG_ADDRESS", "JIG_KEY", "JIG_WORKSPACE", "JIG_SESSION", "JIG_DEADLINE", "TRACEPARENT"} {
		os.Unsetenv(name)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	directory, err := os.MkdirTemp("", "jig-test-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(directory)
	created, config := filepath.Join(directory, "created"), filepath.Join(directory, "jigd.toml")
	text := fmt.Sprintf("[workspaces_on_demand]\ndirectory = %q\n", created)
	if err := errors.Join(os.Mkdir(created, 0o700), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		log.Fatal(err)
	}
	daemon, err := startDaemon(directory, "--listen=127.0.0.1:0", "--config="+config)
	if err != nil {
		log.Fatal(err)
	}
	defer daemon.stop()
	socket, port = daemon.address, daemon.port
	return m.Run()
}

// daemon is a jigd with a workspace of its own.
type daemon struct {
	process   *exec.Cmd
	address   string
	port      string
	workspace string
}

// startDaemon starts jigd with a Unix socket and a state in a directory.
func startDaemon(directory string, arguments ...string) (*daemon, error) {
	d := &daemon{
		address:   "unix:" + filepath.Join(directory, "jig.sock"),
		workspace: filepath.Join(directory, "workspace"),
	}
	if err := os.MkdirAll(d.workspace, 0o700); err != nil {
		return nil, err
	}
	flags := []string{
		"--listen=" + d.address,
		"--workspace=" + d.workspace,
		"--state-dir=" + filepath.Join(directory, "state"),
		"--log=text",
		"--drain-timeout=0s",
	}
	var logged bytes.Buffer
	d.process = exec.Command(program, append(flags, arguments...)...)
	d.process.Stderr = &logged
	d.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	output, err := d.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.process.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(output)
	for _, flag := range d.process.Args {
		if !strings.HasPrefix(flag, "--listen=") {
			continue
		}
		if !lines.Scan() {
			_ = d.process.Wait()
			return nil, fmt.Errorf("the daemon did not start: %s", logged.String())
		}
		if address := strings.TrimPrefix(lines.Text(), "listening on "); address != d.address {
			d.port = address
		}
	}
	return d, nil
}

func (d *daemon) stop() {
	_ = d.process.Process.Signal(syscall.SIGTERM)
	_ = d.process.Wait()
}

// open connects a client in a session of its own, for one test.
func open(t *testing.T, address string, options ...jig.Option) *jig.Client {
	t.Helper()
	session := strings.Map(func(r rune) rune {
		if r == '/' || r == '#' {
			return '-'
		}
		return r
	}, t.Name())
	client, err := jig.Connect(address, append([]jig.Option{jig.WithSession(session)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func timed(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expectReason(t *testing.T, err error, reason jig.Reason) {
	t.Helper()
	if !errors.Is(err, reason) {
		t.Fatalf("the error is %v, not %s", err, reason)
	}
}

func expect[T comparable](t *testing.T, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("got %v, not %v", got, wanted)
	}
}

func TestRunByEachTransport(t *testing.T) {
	for name, client := range map[string]*jig.Client{
		"HTTP/2 over a Unix socket":   open(t, socket),
		"HTTP/1.1 over a Unix socket": open(t, socket, jig.WithHTTP1()),
		"HTTP/2 over TCP":             open(t, port),
		"HTTP/1.1 over TCP":           open(t, "http://"+port+"/", jig.WithHTTP1()),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := timed(t)
			result, err := client.Run(ctx, jig.Shell("echo out; echo err >&2; exit 3"))
			check(t, err)
			expect(t, result.GetStdout()+result.GetStderr(), "out\nerr\n")
			expect(t, result.ShellExitCode(), 3)
			var failed *jig.CommandError
			if !errors.As(result.Check(), &failed) || !strings.HasSuffix(failed.Error(), "exit code 3: err") {
				t.Fatal(result.Check())
			}
			output := ""
			for event, err := range client.Stream(ctx, &jigv1.StartRequest{Argv: []string{"echo", "$HOME"}}) {
				check(t, err)
				output += string(event.Stdout.GetData())
			}
			expect(t, output, "$HOME\n")
			_, err = client.ReadFile(ctx, "none")
			expectReason(t, err, jig.FileNotFound)
		})
	}
}

func TestShellsRemember(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	for _, step := range []struct {
		command, output string
		restart         bool
	}{
		{"cd /usr; x=1", "", true},
		{"pwd; echo $x", "/usr\n1\n", false},
		{"pwd; echo $x", "/workspace\n\n", true},
	} {
		request := jig.Shell(step.command)
		request.Shell, request.RestartShell = proto.String("remembers"), step.restart
		result, err := client.Run(ctx, request)
		check(t, err)
		expect(t, result.GetStdout(), step.output)
		expect(t, result.GetShellState(), "updated")
	}
}

func TestEndsOfCommands(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	request := jig.Shell("sleep 60")
	request.TimeoutSec = proto.Uint32(1)
	result, err := client.Run(ctx, request)
	check(t, err)
	expect(t, result.ShellExitCode(), 124)
	result, err = client.Run(ctx, jig.Shell("kill -KILL $$"))
	check(t, err)
	expect(t, result.ShellExitCode(), 137)

	_, err = client.Run(ctx, jig.Program("no-such-program"))
	expectReason(t, err, jig.CommandNotFound)
	request = jig.Shell("true")
	request.TimeoutSec = proto.Uint32(0)
	_, err = client.Run(ctx, request)
	var failure *jig.Error
	if !errors.As(err, &failure) {
		t.Fatal(err)
	}
	expect(t, failure.Code, connect.CodeInvalidArgument)
	expect(t, failure.Violations[0].Field, "timeout_sec")
	if failure.CallID == "" || !strings.HasPrefix(failure.Error(), "INVALID_PARAMS: ") {
		t.Fatal(failure)
	}
}

func TestContextsEndCalls(t *testing.T) {
	client := open(t, socket, jig.WithRetries(0))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := client.Run(ctx, jig.Shell("sleep 60"))
	expectReason(t, err, jig.Timeout)
	limited, err := client.With(jig.WithTimeout(200 * time.Millisecond))
	check(t, err)
	_, err = limited.Run(timed(t), jig.Shell("sleep 60"))
	expectReason(t, err, jig.Timeout)
	for _, err := range limited.Stream(timed(t), &jigv1.StartRequest{Command: proto.String("sleep 60")}) {
		if err != nil {
			expectReason(t, err, jig.Timeout)
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(200*time.Millisecond, cancel)
	_, err = client.Run(canceled, jig.Shell("sleep 60"))
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestLeavingAStreamKillsItsCommand(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	for event, err := range client.Stream(ctx, &jigv1.StartRequest{Command: proto.String("echo ready; sleep 600")}) {
		check(t, err)
		if event.Stdout != nil {
			break
		}
	}
	waitForEnd(t, client)
}

func TestACancelledStreamKillsItsCommand(t *testing.T) {
	client := open(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for event, err := range client.Stream(ctx, &jigv1.StartRequest{Command: proto.String("echo ready; sleep 600")}) {
		last = err
		if event.Stdout != nil {
			cancel()
		}
	}
	if !errors.Is(last, context.Canceled) {
		t.Fatal(last)
	}
	waitForEnd(t, client)
}

// waitForEnd waits less than the 30 s that a process with a request id has without a stream.
func waitForEnd(t *testing.T, client *jig.Client) {
	t.Helper()
	for range 100 {
		response, err := client.Processes.ListProcesses(timed(t), &jigv1.ListProcessesRequest{})
		check(t, err)
		for _, process := range response.GetProcesses() {
			isEnded := process.GetState() == jigv1.ProcessState_PROCESS_STATE_ENDED
			if process.GetSession() == t.Name() && isEnded {
				expect(t, process.GetSignal(), "SIGKILL")
				return
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the process has not ended")
}

func TestProcessWithATerminal(t *testing.T) {
	client := open(t, socket)
	process, err := client.Start(timed(t), &jigv1.StartRequest{
		Command: proto.String("stty size; read line; stty size; cat"),
		Pty:     &jigv1.TerminalSize{Cols: 80, Rows: 24},
	})
	check(t, err)
	defer process.Close()
	readUntil(t, process, "24 80\r\n")
	check(t, process.Resize(100, 30))
	_, err = process.Write([]byte("go\n"))
	check(t, err)
	readUntil(t, process, "30 100\r\n")
	check(t, process.CloseStdin())
	exited, err := process.Wait()
	check(t, err)
	expect(t, exited.GetExitCode(), 0)
	expectReason(t, process.Signal("SIGTERM"), jig.ProcessEnded)
}

func TestAttach(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	keep := jigv1.OnDisconnect_ON_DISCONNECT_KEEP.Enum()
	process, err := client.Start(ctx, &jigv1.StartRequest{Command: proto.String("echo first; cat"), OnDisconnect: keep})
	check(t, err)
	readUntil(t, process, "first\n")
	process.Close()
	again, err := client.Attach(ctx, &jigv1.AttachRequest{ProcessId: process.ID, StdoutOffset: 2})
	check(t, err)
	_, err = again.Write(bytes.Repeat([]byte("y"), 3<<19))
	check(t, err)
	check(t, again.CloseStdin())
	count := 0
	for event, err := range again.Events() {
		check(t, err)
		count += len(event.Stdout.GetData())
	}
	expect(t, count, 4+3<<19)
	again.Close()
	_, err = client.Attach(ctx, &jigv1.AttachRequest{ProcessId: "01HZZZZZZZZZZZZZZZZZZZZZZZ"})
	expectReason(t, err, jig.ProcessNotFound)
}

func readUntil(t *testing.T, process *jig.Process, text string) {
	t.Helper()
	received := ""
	for event, err := range process.Events() {
		check(t, err)
		received += string(event.Stdout.GetData())
		if strings.Contains(received, text) {
			return
		}
	}
	t.Fatalf("the output is %q", received)
}

func TestFiles(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	root := fmt.Sprint("files-", time.Now().UnixNano())
	content := bytes.Repeat([]byte("0123456789abcdef\n"), 100_000)
	check(t, client.WriteFile(ctx, root+"/a", content))
	read, err := client.ReadFile(ctx, root+"/a")
	check(t, err)
	expect(t, bytes.Equal(read, content), true)
	start := &jigv1.UploadStart{Path: root + "/b", FileMode: proto.Uint32(0o755)}
	uploaded, err := client.Upload(ctx, start, bytes.NewReader(content))
	check(t, err)
	expect(t, uploaded.GetCreated(), true)
	info, err := client.Tools.StatPath(ctx, &jigv1.StatPathRequest{Path: root + "/b"})
	check(t, err)
	expect(t, info.GetMode(), 0o755)
	check(t, client.WriteFile(ctx, root+"/empty", nil))
	read, err = client.ReadFile(ctx, root+"/empty")
	check(t, err)
	expect(t, len(read), 0)

	_, err = client.Upload(ctx, &jigv1.UploadStart{Path: "../x"}, bytes.NewReader(content))
	expectReason(t, err, jig.PathEscape)
	found, err := client.Tools.Search(ctx, &jigv1.SearchRequest{Query: "abcdef", Path: proto.String(root), MaxResults: proto.Uint32(1)})
	check(t, err)
	expect(t, found.GetMatches()[0].GetFile(), root+"/a")
}

func TestJobs(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	job, err := client.SubmitJob(ctx, "run", map[string]any{"command": "echo one; sleep 0.3; echo two"})
	check(t, err)
	output := ""
	var last *jigv1.Job
	for event, err := range client.WatchJob(ctx, job.GetJobId()) {
		check(t, err)
		output += string(event.GetStdout().GetData())
		last = event.GetJob()
	}
	expect(t, output, "one\ntwo\n")
	expect(t, last.GetState(), jigv1.JobState_JOB_STATE_SUCCEEDED)
	waited, err := client.WaitJob(ctx, job.GetJobId())
	check(t, err)
	expect(t, proto.Equal(waited, last), true)

	job, err = client.SubmitJob(ctx, "run", map[string]any{"command": "sleep 600"})
	check(t, err)
	job, err = client.CancelJob(ctx, job.GetJobId())
	check(t, err)
	expect(t, job.GetState(), jigv1.JobState_JOB_STATE_CANCELLED)
	_, err = client.SubmitJob(ctx, "no_such_tool", map[string]any{})
	expectReason(t, err, jig.UnknownTool)
}

func TestWorkspaces(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	labels := map[string]string{"task": t.Name()}
	workspace, inside, err := client.CreateWorkspace(ctx, &jigv1.CreateWorkspaceRequest{Labels: labels})
	check(t, err)
	check(t, inside.WriteFile(ctx, "a", []byte("copied")))
	name := workspace.GetName()
	copied, inCopy, err := client.CreateWorkspace(ctx, &jigv1.CreateWorkspaceRequest{CloneOf: &name})
	check(t, err)
	content, err := inCopy.ReadFile(ctx, "a")
	check(t, err)
	expect(t, string(content), "copied")
	check(t, client.DeleteWorkspace(ctx, copied.GetName()))

	listed, err := client.Workspaces.ListWorkspaces(ctx, &jigv1.ListWorkspacesRequest{Labels: labels})
	check(t, err)
	expect(t, listed.GetWorkspaces()[0].GetName(), name)
	check(t, client.DeleteWorkspace(ctx, name))
	_, err = inside.Run(ctx, jig.Shell("true"))
	expectReason(t, err, jig.UnknownWorkspace)
	expectReason(t, client.DeleteWorkspace(ctx, name), jig.UnknownWorkspace)
}

func TestCopiesOfAClient(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	id := fmt.Sprint("once-", time.Now().UnixNano())
	once, err := client.With(jig.WithRequestID(id))
	check(t, err)
	for range 2 {
		_, err := once.Run(ctx, jig.Shell("echo x >> "+id))
		check(t, err)
	}
	result, err := client.Run(ctx, jig.Shell("wc -l < "+id))
	check(t, err)
	expect(t, result.GetStdout(), "1\n")
	_, err = once.Run(ctx, jig.Shell("other"))
	expectReason(t, err, jig.RequestIdReused)
	elsewhere, err := client.With(jig.WithWorkspace("no-such-workspace"))
	check(t, err)
	_, err = elsewhere.Daemon.GetInfo(ctx, &jigv1.GetInfoRequest{})
	expectReason(t, err, jig.UnknownWorkspace)
}

func TestExample(t *testing.T) {
	command := exec.CommandContext(timed(t), "go", "run", "./examples/agent")
	command.Env = append(os.Environ(), "JIG_ADDRESS="+socket)
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v", output, err)
	}
	for _, line := range []string{"write_file: true\n", "run: true\n", "hello from the sandbox"} {
		expect(t, strings.Contains(string(output), line), true)
	}
}

func TestAddressesAndOptions(t *testing.T) {
	for _, address := range []string{
		"", "host", "host:", "host:port", "host:0", "host:99999", "ftp://host:1", "http://host",
		"http://host:1/path", "http://key@host:1", "host :1", "unix:", "unix://host/path",
	} {
		if _, err := jig.Connect(address); err == nil {
			t.Errorf("the address %q is accepted", address)
		}
	}
	for _, address := range []string{"[::1]:50051", "https://host:443", "unix:///run/jig.sock"} {
		if _, err := jig.Connect(address); err != nil {
			t.Error(err)
		}
	}
	for _, option := range []jig.Option{
		jig.WithKey("a\nb"), jig.WithSession("é"), jig.WithTimeout(-1), jig.WithCA("ca.pem"),
	} {
		if _, err := jig.Connect("host:1", option); err == nil {
			t.Error("an invalid option is accepted")
		}
	}
	t.Setenv("JIG_DEADLINE", "soon")
	if _, err := jig.Connect("host:1"); err == nil {
		t.Error("an invalid deadline is accepted")
	}
}

func TestTLSAndKeys(t *testing.T) {
	directory := t.TempDir()
	check(t, os.Chmod(directory, 0o700))
	command := func(name string, arguments ...string) string {
		cmd := exec.Command(name, arguments...)
		cmd.Dir = directory
		output, err := cmd.Output()
		check(t, err)
		return strings.TrimSpace(string(output))
	}
	certificate := []string{"-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"}
	names := []string{"-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"}
	files := []string{"-keyout", "tls.key", "-out", "tls.crt"}
	command("openssl", append(append(append([]string{"req", "-x509"}, certificate...), names...), files...)...)
	file := func(name string) string { return filepath.Join(directory, name) }
	check(t, os.Chmod(file("tls.key"), 0o600))
	tool := filepath.Join(filepath.Dir(program), "jig")
	key := command(tool, "key", "--keys", file("keys.toml"), "new", "reader", "--role", "read")

	daemon, err := startDaemon(t.TempDir(), "--listen=127.0.0.1:0", "--keys="+file("keys.toml"),
		"--tls-cert="+file("tls.crt"), "--tls-key="+file("tls.key"))
	check(t, err)
	defer daemon.stop()
	address := "https://" + daemon.port
	ctx := timed(t)
	reader := open(t, address, jig.WithCA(file("tls.crt")), jig.WithKey(key))
	_, err = reader.Daemon.GetInfo(ctx, &jigv1.GetInfoRequest{})
	check(t, err)
	_, err = reader.Run(ctx, jig.Shell("true"))
	expectReason(t, err, jig.Forbidden)
	_, err = open(t, address, jig.WithCA(file("tls.crt"))).Run(ctx, jig.Shell("true"))
	expectReason(t, err, jig.Unauthenticated)
	_, err = open(t, address, jig.WithKey(key), jig.WithRetries(0)).Run(ctx, jig.Shell("true"))
	expect(t, connect.CodeOf(errors.Unwrap(err)), connect.CodeUnavailable)
	expect(t, strings.Contains(err.Error(), "certificate"), true)
}

// failure is a response of a failing server.
type failure struct {
	status int
	code   string
	reason string
	delay  time.Duration
}

// failingServer answers calls with failures, one after the other, and then with success.
type failingServer struct {
	mutex      sync.Mutex
	failures   []failure
	requestIDs []string
}

func (s *failingServer) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	_, _ = io.Copy(io.Discard, request.Body)
	s.requestIDs = append(s.requestIDs, request.Header.Get("Jig-Request-Id"))
	if len(s.failures) == 0 {
		writer.Header().Set("Content-Type", "application/proto")
		return
	}
	next := s.failures[0]
	s.failures = s.failures[1:]
	details := []map[string]string{}
	add := func(message proto.Message) {
		value, _ := proto.Marshal(message)
		details = append(details, map[string]string{
			"type":  string(message.ProtoReflect().Descriptor().FullName()),
			"value": base64.RawStdEncoding.EncodeToString(value),
		})
	}
	if next.reason != "" {
		add(&errdetails.ErrorInfo{Reason: next.reason, Domain: "jig.v1"})
	}
	if next.delay > 0 {
		add(&errdetails.RetryInfo{RetryDelay: durationpb.New(next.delay)})
	}
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(next.status)
	_ = json.NewEncoder(writer).Encode(map[string]any{"code": next.code, "message": "failed", "details": details})
}

func openFailing(t *testing.T, failures ...failure) (*jig.Client, *failingServer) {
	handler := &failingServer{failures: failures}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return open(t, server.URL, jig.WithHTTP1()), handler
}

var exhausted = failure{429, "resource_exhausted", "RESOURCE_EXHAUSTED", time.Millisecond}

func TestRetriesWaitAndKeepTheRequestID(t *testing.T) {
	client, server := openFailing(t,
		failure{429, "resource_exhausted", "RESOURCE_EXHAUSTED", 200 * time.Millisecond},
		failure{503, "unavailable", "DRAINING", 0},
		failure{503, "unavailable", "", 0},
	)
	begin := time.Now()
	_, err := client.Run(timed(t), jig.Shell("true"))
	check(t, err)
	expect(t, time.Since(begin) >= 200*time.Millisecond, true)
	expect(t, len(server.requestIDs), 4)
	for _, id := range server.requestIDs {
		expect(t, len(id), 32)
		expect(t, id, server.requestIDs[0])
	}
	_, err = client.Daemon.GetInfo(timed(t), &jigv1.GetInfoRequest{})
	check(t, err)
	expect(t, server.requestIDs[4], "")
}

func TestRetriesAreBounded(t *testing.T) {
	failures := make([]failure, 9)
	for index := range failures {
		failures[index] = exhausted
	}
	client, server := openFailing(t, failures...)
	_, err := client.Run(timed(t), jig.Shell("true"))
	expectReason(t, err, jig.ResourceExhausted)
	expect(t, len(server.requestIDs), 1+jig.DefaultRetries)
	once, err := client.With(jig.WithRetries(0))
	check(t, err)
	_, err = once.Run(timed(t), jig.Shell("true"))
	expectReason(t, err, jig.ResourceExhausted)
	expect(t, server.requestIDs[6], "")

	slow, server := openFailing(t, failure{429, "resource_exhausted", "X", time.Minute})
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = slow.Run(ctx, jig.Shell("true"))
	expectReason(t, err, "X")
	expect(t, len(server.requestIDs) == 1 && time.Since(begin) < 4*time.Second, true)
}

func TestOtherErrorsAreFinal(t *testing.T) {
	for _, failure := range []failure{
		{429, "resource_exhausted", "RESOURCE_EXHAUSTED", 0},
		{503, "unavailable", "STATE_LOST", 0},
		{409, "aborted", "DAEMON_LOST", 0},
		{500, "internal", "A_REASON_OF_THE_FUTURE", 0},
	} {
		client, server := openFailing(t, failure)
		_, err := client.Run(timed(t), jig.Shell("true"))
		expectReason(t, err, jig.Reason(failure.reason))
		expect(t, len(server.requestIDs), 1)
	}
}

func TestNoDaemonIsUnavailable(t *testing.T) {
	for _, address := range []string{"unix:/nonexistent/none.sock", "127.0.0.1:1"} {
		_, err := open(t, address, jig.WithRetries(1)).Run(timed(t), jig.Shell("true"))
		var failure *jig.Error
		if !errors.As(err, &failure) || failure.Code != connect.CodeUnavailable || failure.Reason != "" {
			t.Fatal(err)
		}
	}
}

func TestCallsWaitForARestartedDaemon(t *testing.T) {
	directory := t.TempDir()
	first, err := startDaemon(directory)
	check(t, err)
	ctx, client := timed(t), open(t, first.address, jig.WithRetries(10))
	_, err = client.Run(ctx, jig.Shell("echo before"))
	check(t, err)
	first.stop()
	done := make(chan string)
	go func() {
		result, _ := client.Run(ctx, jig.Shell("echo after"))
		done <- result.GetStdout()
	}()
	// Several attempts fail.
	time.Sleep(300 * time.Millisecond)
	second, err := startDaemon(directory)
	check(t, err)
	defer second.stop()
	expect(t, <-done, "after\n")
}

// cuttingProxy forwards connections to the daemon, and cuts each after some bytes.
func cuttingProxy(t *testing.T, cuts *atomic.Int64) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for count := int64(0); ; count++ {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", strings.TrimPrefix(socket, "unix:"))
			if err != nil {
				near.Close()
				return
			}
			var budget atomic.Int64
			budget.Store(500_000 + count%5*50_000)
			forward := func(from, to net.Conn) {
				defer from.Close()
				defer to.Close()
				buffer := make([]byte, 16<<10)
				for {
					size, err := from.Read(buffer)
					if left := budget.Add(-int64(size)); left < 0 {
						if left+int64(size) >= 0 {
							cuts.Add(1)
						}
						return
					}
					if _, writeErr := to.Write(buffer[:size]); err != nil || writeErr != nil {
						return
					}
				}
			}
			go forward(near, far)
			go forward(far, near)
		}
	}()
	return listener.Addr().String()
}

func TestCopiesContinueAfterCuts(t *testing.T) {
	var cuts atomic.Int64
	address := cuttingProxy(t, &cuts)
	// On a busy machine, many attempts in a row end before the daemon has read a chunk.
	retries := jig.WithRetries(40)
	for name, options := range map[string][]jig.Option{
		"http2": {retries},
		"http1": {retries, jig.WithHTTP1()},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, client := timed(t), open(t, address, options...)
			content := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog\n"), 4<<20/44)
			cuts.Store(0)
			_, err := client.Upload(ctx, &jigv1.UploadStart{Path: "go-cut-" + name}, bytes.NewReader(content))
			check(t, err)
			read, err := client.ReadFile(ctx, "go-cut-"+name)
			check(t, err)
			expect(t, bytes.Equal(read, content), true)
			job, err := client.SubmitJob(ctx, "run", map[string]any{"command": "cat go-cut-" + name})
			check(t, err)
			var output []byte
			for event, err := range client.WatchJob(ctx, job.GetJobId()) {
				check(t, err)
				output = append(output, event.GetStdout().GetData()...)
			}
			expect(t, bytes.Equal(output, content), true)
			offset := uint64(0)
			for event, err := range client.Stream(ctx, &jigv1.StartRequest{Command: proto.String("cat go-cut-" + name)}) {
				check(t, err)
				switch {
				case event.Gap != nil:
					// While the connection was lost, the command wrote more than the daemon holds.
					offset = event.Gap.GetStdoutOffset()
				case event.Stdout != nil:
					data := event.Stdout.GetData()
					expect(t, event.Stdout.GetOffset(), offset)
					expect(t, bytes.Equal(data, content[offset:offset+uint64(len(data))]), true)
					offset += uint64(len(data))
				}
			}
			expect(t, offset, uint64(len(content)))
			expect(t, cuts.Load() > 12, true)
		})
	}
}
