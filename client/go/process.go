package jig

import (
	"context"
	"errors"
	"iter"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"jig.example/client/jigv1"
)

const maxStdinWriteBytes = 1 << 20

// Event is what a process reports: a ProcessStarted, ProcessOutput, ProcessGap (output that the
// daemon has dropped) or, last, ProcessExited.
type Event struct {
	Started *jigv1.ProcessStarted
	Stdout  *jigv1.ProcessOutput
	Stderr  *jigv1.ProcessOutput
	Gap     *jigv1.ProcessGap
	Exited  *jigv1.ProcessExited
}

// eventMessage is a message of the streams of Start and Attach.
type eventMessage interface {
	GetStarted() *jigv1.ProcessStarted
	GetStdout() *jigv1.ProcessOutput
	GetStderr() *jigv1.ProcessOutput
	GetGap() *jigv1.ProcessGap
	GetExited() *jigv1.ProcessExited
}

// position is how much of the output of a process was received.
type position struct {
	processID    string
	sequence     uint64
	stdoutOffset uint64
	stderrOffset uint64
	hasExited    bool
}

func (p *position) advance(event Event) {
	switch {
	case event.Started != nil:
		p.processID = event.Started.GetProcessId()
	case event.Stdout != nil:
		p.sequence = event.Stdout.GetSequence()
		p.stdoutOffset = event.Stdout.GetOffset() + uint64(len(event.Stdout.GetData()))
	case event.Stderr != nil:
		p.sequence = event.Stderr.GetSequence()
		p.stderrOffset = event.Stderr.GetOffset() + uint64(len(event.Stderr.GetData()))
	case event.Gap != nil:
		p.sequence = event.Gap.GetNextSequence() - 1
		p.stdoutOffset, p.stderrOffset = event.Gap.GetStdoutOffset(), event.Gap.GetStderrOffset()
	case event.Exited != nil:
		p.hasExited = true
	}
}

// Stream runs a command and streams its output while it runs, then its end.
//
// The stream continues after a lost connection. Leaving the loop kills the command, as the end of
// the context does.
func (c *Client) Stream(ctx context.Context, request *jigv1.StartRequest) iter.Seq2[Event, error] {
	request = proto.CloneOf(request)
	request.StdinOpen = proto.Bool(false)
	return c.events(ctx, request, &position{})
}

// events streams the events of a process, over lost connections. Without a request of Start, it
// attaches.
func (c *Client) events(ctx context.Context, start *jigv1.StartRequest, at *position) iter.Seq2[Event, error] {
	isOwner := start != nil && start.GetOnDisconnect() != jigv1.OnDisconnect_ON_DISCONNECT_KEEP
	return func(yield func(Event, error) bool) {
		wasStarted := false
		hasFailed := false
		hasLeft := false
		for message, err := range follow(ctx, c.options, func(ctx context.Context) (*source, error) {
			// Before the start, a repeated call has the same request id, and so starts nothing new.
			if start != nil && at.processID == "" {
				stream, err := c.Processes.Start(ctx, start)
				return newSource(stream, err)
			}
			stream, err := c.Processes.Attach(ctx, &jigv1.AttachRequest{
				ProcessId:     at.processID,
				AfterSequence: at.sequence,
				StdoutOffset:  at.stdoutOffset,
				StderrOffset:  at.stderrOffset,
			})
			return newSource(stream, err)
		}) {
			if err != nil {
				hasFailed = ctx.Err() == nil
				hasLeft = true
				yield(Event{}, err)
				break
			}
			m := message.(eventMessage)
			event := Event{m.GetStarted(), m.GetStdout(), m.GetStderr(), m.GetGap(), m.GetExited()}
			at.advance(event)
			isRepeated := event.Started != nil && wasStarted
			wasStarted = wasStarted || event.Started != nil
			if event == (Event{}) || isRepeated {
				continue
			}
			if !yield(event, nil) {
				hasLeft = true
				break
			}
		}
		if !hasLeft && !hasFailed && !at.hasExited {
			yield(Event{}, &Error{Code: connect.CodeUnavailable, Message: "the stream of the process ended before the process"})
		}
		if isOwner && at.processID != "" && !at.hasExited && !hasFailed {
			c.kill(context.WithoutCancel(ctx), at.processID)
		}
	}
}

// kill kills a process, which can have ended.
func (c *Client) kill(ctx context.Context, processID string) {
	request := &jigv1.SendSignalRequest{ProcessId: processID, Signal: "SIGKILL"}
	// The request id of the client is that of Start. Without a connection, the daemon kills it.
	other, err := c.With(WithRequestID(""))
	if err == nil {
		_, _ = other.Processes.SendSignal(ctx, request)
	}
}

// Process is a command with an open input. Close it.
type Process struct {
	// ID is the id for Attach. It is empty if the process was killed before its start.
	ID string

	client *Client
	ctx    context.Context
	cancel context.CancelFunc
	next   func() (Event, error, bool)
	stop   func()
	first  *Event
	mutex  sync.Mutex
}

// Start starts a command and returns it as a process, with its input open.
//
// A pty in the request gives it a terminal, whose output is all standard output. With
// OnDisconnect_ON_DISCONNECT_KEEP, it continues when it is closed, and Attach finds it.
func (c *Client) Start(ctx context.Context, request *jigv1.StartRequest) (*Process, error) {
	return c.open(ctx, request, &position{})
}

// Attach attaches to a running process, or one that ended within 15 minutes. Closing it does not
// kill it.
func (c *Client) Attach(ctx context.Context, request *jigv1.AttachRequest) (*Process, error) {
	return c.open(ctx, nil, &position{
		processID:    request.GetProcessId(),
		sequence:     request.GetAfterSequence(),
		stdoutOffset: request.GetStdoutOffset(),
		stderrOffset: request.GetStderrOffset(),
	})
}

func (c *Client) open(ctx context.Context, start *jigv1.StartRequest, at *position) (*Process, error) {
	other, err := c.With(WithRequestID(""))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	next, stop := iter.Pull2(c.events(ctx, start, at))
	process := &Process{client: other, ctx: ctx, cancel: cancel, next: next, stop: stop}
	first, err, _ := next()
	if err != nil {
		process.Close()
		return nil, err
	}
	if first.Started == nil {
		process.first = &first
	} else {
		process.ID = first.Started.GetProcessId()
	}
	return process, nil
}

// Events streams the output of the process, then its end. A later loop continues.
func (p *Process) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			event, err, ok := p.receive()
			if !ok || !yield(event, err) || err != nil {
				return
			}
		}
	}
}

func (p *Process) receive() (Event, error, bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if first := p.first; first != nil {
		p.first = nil
		return *first, nil, true
	}
	return p.next()
}

// Wait reads the rest of the output, drops it, and returns how the process ended.
func (p *Process) Wait() (*jigv1.ProcessExited, error) {
	for event, err := range p.Events() {
		if err != nil {
			return nil, err
		}
		if event.Exited != nil {
			return event.Exited, nil
		}
	}
	return nil, errors.New("the process was closed, or its end was already read")
}

// Write writes to the standard input. It waits while 1 MiB of it is unread.
func (p *Process) Write(data []byte) (int, error) {
	written := 0
	for written < len(data) {
		part := data[written:min(len(data), written+maxStdinWriteBytes)]
		request := &jigv1.WriteStdinRequest{ProcessId: p.ID, Data: part, WriteId: newID()}
		if _, err := p.client.Processes.WriteStdin(p.ctx, request); err != nil {
			return written, err
		}
		written += len(part)
	}
	return written, nil
}

// CloseStdin closes the standard input. A terminal gets its end-of-file character, Ctrl-D.
func (p *Process) CloseStdin() error {
	request := &jigv1.WriteStdinRequest{ProcessId: p.ID, Eof: true, WriteId: newID()}
	_, err := p.client.Processes.WriteStdin(p.ctx, request)
	return err
}

// Resize sets the size of the terminal, in characters.
func (p *Process) Resize(cols, rows uint32) error {
	request := &jigv1.ResizeTerminalRequest{ProcessId: p.ID, Cols: cols, Rows: rows}
	_, err := p.client.Processes.ResizeTerminal(p.ctx, request)
	return err
}

// Signal sends a signal, such as SIGTERM, to the process group.
func (p *Process) Signal(name string) error {
	request := &jigv1.SendSignalRequest{ProcessId: p.ID, Signal: name}
	_, err := p.client.Processes.SendSignal(p.ctx, request)
	return err
}

// Close ends the stream of events, and kills the process unless it was attached to or started with
// OnDisconnect_ON_DISCONNECT_KEEP.
func (p *Process) Close() {
	p.cancel()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.stop()
}

// source is an open stream of responses.
type source struct {
	receive func() bool
	message func() proto.Message
	err     func() error
	close   func()
}

type messagePointer[T any] interface {
	*T
	proto.Message
}

func newSource[T any, P messagePointer[T]](stream *connect.ServerStreamForClient[T], err error) (*source, error) {
	if err != nil {
		return nil, err
	}
	return &source{
		receive: stream.Receive,
		message: func() proto.Message { return P(stream.Msg()) },
		err:     stream.Err,
		close:   func() { _ = stream.Close() },
	}, nil
}

// follow streams messages. If the stream is interrupted, it opens another with the same request id.
func follow(ctx context.Context, options options, open func(context.Context) (*source, error)) iter.Seq2[proto.Message, error] {
	return func(yield func(proto.Message, error) bool) {
		ctx, cancel := options.withTimeout(ctx)
		defer cancel()
		attempts := newAttempts(options)
		ctx = context.WithValue(ctx, attemptsKey{}, attempts)
		for {
			isLeft, err := followOnce(ctx, attempts, open, yield)
			if isLeft || err == nil {
				return
			}
			if err := attempts.wait(ctx, err); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// followOnce streams the messages of one stream. It reports whether the loop was left.
func followOnce(
	ctx context.Context,
	attempts *attempts,
	open func(context.Context) (*source, error),
	yield func(proto.Message, error) bool,
) (isLeft bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	source, err := open(ctx)
	if err != nil {
		return false, toError(err)
	}
	defer source.close()
	for source.receive() {
		attempts.progress()
		if !yield(source.message(), nil) {
			return true, nil
		}
	}
	return false, toError(source.err())
}
