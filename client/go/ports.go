package jig

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"connectrpc.com/connect"
	"jig.example/client/jigv1"
)

const (
	portChunkBytes = 64 << 10
	// How long a closed connection waits for the end of the server's output.
	portCloseTimeout = 5 * time.Second
)

// PortConn is a connection to a port of a process. It is a [net.Conn], whose output CloseWrite ends.
//
// Reads and writes return an [Error] if the call has failed: ConnectionReset or ProcessEnded if bytes
// may be lost.
type PortConn struct {
	// The near ends of two pipes: what the server sends, and what it receives.
	input, output net.Conn
	remote        net.Addr

	mutex   sync.Mutex
	failure error
}

// DialPort connects to a TCP port of a process, in the network of its run. For HTTP, it is the
// DialContext of a Transport, with any address.
//
// The context ends the attempt. It has no effect on a connection. PortRefused means that nothing
// listens on the port.
func (c *Client) DialPort(ctx context.Context, processID string, port uint16) (*PortConn, error) {
	callCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopWatch := context.AfterFunc(ctx, cancel)
	stream, address, err := c.openPort(callCtx, processID, port)
	if !stopWatch() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, toError(err)
	}

	input, farInput := net.Pipe()
	output, farOutput := net.Pipe()
	conn := &PortConn{input: input, output: output, remote: &net.TCPAddr{IP: net.ParseIP(address), Port: int(port)}}
	go conn.send(stream, farOutput)
	go conn.receive(stream, farInput, farOutput, cancel)
	return conn, nil
}

type portStream = connect.BidiStreamForClientSimple[jigv1.ForwardPortRequest, jigv1.ForwardPortResponse]

func (c *Client) openPort(ctx context.Context, processID string, port uint16) (*portStream, string, error) {
	stream, err := c.Processes.ForwardPort(ctx)
	if err != nil {
		return nil, "", err
	}
	start := &jigv1.ForwardPortStart{ProcessId: processID, Port: uint32(port)}
	request := &jigv1.ForwardPortRequest{Part: &jigv1.ForwardPortRequest_Start{Start: start}}
	// Receive has the error of a call that has ended (io.EOF).
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
		return nil, "", err
	}
	first, err := stream.Receive()
	if err != nil {
		return nil, "", err
	}
	return stream, first.GetConnected().GetAddress(), nil
}

// send sends what was written, until the output is closed.
func (p *PortConn) send(stream *portStream, output net.Conn) {
	defer output.Close()
	buffer := make([]byte, portChunkBytes)
	for {
		length, err := output.Read(buffer)
		if length > 0 {
			data := append([]byte(nil), buffer[:length]...)
			request := &jigv1.ForwardPortRequest{Part: &jigv1.ForwardPortRequest_Data{Data: data}}
			if stream.Send(request) != nil {
				return
			}
		}
		if err != nil {
			end := &jigv1.ForwardPortRequest_EndOfData{EndOfData: &jigv1.EndOfPortData{}}
			_ = stream.Send(&jigv1.ForwardPortRequest{Part: end})
			_ = stream.CloseRequest()
			return
		}
	}
}

// fail makes later reads and writes return an error.
func (p *PortConn) fail(err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.failure = err
}

// receive makes what the server sends readable, until the call has ended.
func (p *PortConn) receive(stream *portStream, input, output net.Conn, cancel context.CancelFunc) {
	defer cancel()
	defer output.Close()
	defer input.Close()
	isClosed, isComplete := false, false
	for {
		message, err := stream.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.fail(toError(err))
			} else if !isComplete {
				p.fail(io.ErrUnexpectedEOF)
			}
			return
		}
		if message.GetEndOfData() != nil {
			isComplete = true
			_ = input.Close()
		}
		if data := message.GetData(); len(data) > 0 && !isClosed {
			if _, err := input.Write(data); err != nil {
				// Nobody reads. What was written before must still arrive.
				isClosed = true
				timer := time.AfterFunc(portCloseTimeout, cancel)
				defer timer.Stop()
			}
		}
	}
}

// orFailure replaces the error of a pipe by that of the call.
func (p *PortConn) orFailure(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.failure != nil {
		return p.failure
	}
	return err
}

// Read implements [net.Conn].
func (p *PortConn) Read(data []byte) (int, error) {
	length, err := p.input.Read(data)
	if err != nil {
		err = p.orFailure(err)
	}
	return length, err
}

// Write implements [net.Conn].
func (p *PortConn) Write(data []byte) (int, error) {
	length, err := p.output.Write(data)
	if err != nil {
		err = p.orFailure(err)
	}
	return length, err
}

// CloseWrite ends the input of the server, which reads an end of file.
func (p *PortConn) CloseWrite() error { return p.output.Close() }

// Close implements [net.Conn]. What was written before arrives.
func (p *PortConn) Close() error {
	return errors.Join(p.output.Close(), p.input.Close())
}

// LocalAddr implements [net.Conn].
func (p *PortConn) LocalAddr() net.Addr { return p.output.LocalAddr() }

// RemoteAddr implements [net.Conn]. It is the address in the network of the run.
func (p *PortConn) RemoteAddr() net.Addr { return p.remote }

// SetDeadline implements [net.Conn].
func (p *PortConn) SetDeadline(deadline time.Time) error {
	return errors.Join(p.SetReadDeadline(deadline), p.SetWriteDeadline(deadline))
}

// SetReadDeadline implements [net.Conn].
func (p *PortConn) SetReadDeadline(deadline time.Time) error {
	return p.input.SetReadDeadline(deadline)
}

// SetWriteDeadline implements [net.Conn].
func (p *PortConn) SetWriteDeadline(deadline time.Time) error {
	return p.output.SetWriteDeadline(deadline)
}
