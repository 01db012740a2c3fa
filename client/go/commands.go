package jig

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"jig.example/client/jigv1"
)

// signals are the numbers of signals of Linux that end commands.
var signals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGILL": 4, "SIGTRAP": 5, "SIGABRT": 6, "SIGBUS": 7,
	"SIGFPE": 8, "SIGKILL": 9, "SIGUSR1": 10, "SIGSEGV": 11, "SIGUSR2": 12, "SIGPIPE": 13,
	"SIGALRM": 14, "SIGTERM": 15, "SIGSTKFLT": 16, "SIGXCPU": 24, "SIGXFSZ": 25, "SIGVTALRM": 26,
	"SIGPROF": 27, "SIGIO": 29, "SIGPWR": 30, "SIGSYS": 31,
}

// Shell is a request for a command that /bin/sh runs. Its fields can be changed before the call.
func Shell(command string) *jigv1.RunRequest {
	return &jigv1.RunRequest{Command: proto.String(command)}
}

// Program is a request for a program and its arguments, without a shell.
func Program(argv ...string) *jigv1.RunRequest {
	return &jigv1.RunRequest{Argv: argv}
}

// Result is how a command ended.
type Result struct {
	*jigv1.RunResponse
}

// Run runs a command to its end. Its result says truthfully how it ended.
//
// A command that ran is never an error. An error says that nothing was run, such as
// [CommandNotFound] or [SandboxUnavailable].
//
// In a Shell, a command has the directory, variables, functions and options that the last command with
// this name left.
func (c *Client) Run(ctx context.Context, request *jigv1.RunRequest) (Result, error) {
	response, err := c.Tools.Run(ctx, request)
	return Result{response}, err
}

// OK reports whether the command exited with 0.
func (r Result) OK() bool {
	return r.GetOutcome() == jigv1.Outcome_OUTCOME_EXITED && r.GetExitCode() == 0
}

// ShellExitCode returns the exit code as a shell and `jig run` report it: 128 + n after signal n, 124
// after a timeout, 130 after a cancellation, and 125 if the end of the command is unknown.
func (r Result) ShellExitCode() int {
	if r.ExitCode != nil {
		return int(r.GetExitCode())
	}
	switch r.GetOutcome() {
	case jigv1.Outcome_OUTCOME_TIMED_OUT:
		return 124
	case jigv1.Outcome_OUTCOME_CANCELLED:
		return 130
	}
	if number, isKnown := signals[r.GetSignal()]; isKnown {
		return 128 + number
	}
	return 125
}

// Check returns an error unless the command exited with 0.
func (r Result) Check() error {
	if r.OK() {
		return nil
	}
	ending := fmt.Sprintf("exit code %d", r.GetExitCode())
	if r.ExitCode == nil {
		outcome := strings.TrimPrefix(r.GetOutcome().String(), "OUTCOME_")
		ending = strings.Join(strings.Fields(outcome+" "+r.GetSignal()+" "+r.GetLimit()), " ")
	}
	output := strings.TrimSpace(r.GetStderr())
	if output == "" {
		output = strings.TrimSpace(r.GetStdout())
	}
	return &CommandError{Result: r, message: fmt.Sprintf("the command ended with %s: %s", ending, output)}
}

// CommandError is a command that did not exit with 0.
type CommandError struct {
	// Result is how the command ended.
	Result  Result
	message string
}

func (e *CommandError) Error() string { return e.message }
