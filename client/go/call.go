package jig

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"math"
	mathrand "math/rand/v2"
	"time"

	"connectrpc.com/connect"
)

// Bounds of the delay before a retry without RetryInfo. Each delay is twice the one before.
const (
	minRetryDelay = 100 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

// interceptor adds headers to calls, repeats them, and converts their errors.
type interceptor struct {
	options options
}

// WrapUnary repeats a call under its request id.
func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, cancel := i.options.withTimeout(ctx)
		defer cancel()
		attempts := newAttempts(i.options)
		attempts.setHeader(request.Header(), request.Spec())
		for {
			response, err := next(ctx, request)
			if err == nil {
				return response, nil
			}
			if err := attempts.wait(ctx, err); err != nil {
				return nil, err
			}
		}
	}
}

// WrapStreamingClient adds headers. [follow] repeats streams.
func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		attempts, isRepeated := ctx.Value(attemptsKey{}).(*attempts)
		if !isRepeated {
			attempts = newAttempts(i.options)
		}
		attempts.setHeader(conn.RequestHeader(), spec)
		return &stream{conn}
	}
}

// WrapStreamingHandler is for servers.
func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// stream converts the errors of a stream.
type stream struct {
	connect.StreamingClientConn
}

func (s *stream) Receive(message any) error {
	return toError(s.StreamingClientConn.Receive(message))
}

type attemptsKey struct{}

// attempts are those of one call: its request id, and the delays between them.
type attempts struct {
	options   options
	requestID string
	count     int
}

// newAttempts chooses the request id. A call without one is not repeated.
func newAttempts(options options) *attempts {
	a := &attempts{options: options, requestID: options.requestID}
	if a.requestID == "" && options.retries > 0 {
		a.requestID = newID()
	}
	return a
}

func onlyReads(spec connect.Spec) bool {
	return spec.IdempotencyLevel == connect.IdempotencyNoSideEffects
}

func (a *attempts) setHeader(header interface{ Set(name, value string) }, spec connect.Spec) {
	options := a.options
	options.requestID = ""
	if !onlyReads(spec) {
		options.requestID = a.requestID
	}
	for name, values := range options.header() {
		header.Set(name, values[0])
	}
}

// progress starts to count retries anew, after an attempt that had an effect.
func (a *attempts) progress() { a.count = 0 }

// wait waits before the next attempt. It returns the error if there must be none.
func (a *attempts) wait(ctx context.Context, err error) error {
	err = toError(err)
	var failure *Error
	if ctx.Err() != nil || !errors.As(err, &failure) {
		return err
	}
	delay, helps := retryDelay(failure, a.count)
	if !helps || a.count >= a.options.retries {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= delay {
		return err
	}
	a.count++
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return err
	}
}

// retryDelay returns the delay before a retry, and whether one helps.
func retryDelay(err *Error, attempt int) (time.Duration, bool) {
	if err.RetryDelay > 0 {
		// Clients that were rejected together do not come back together.
		return time.Duration(float64(err.RetryDelay) * (1 + mathrand.Float64()*0.2)), true
	}
	if err.Code == connect.CodeUnavailable && (err.Reason == "" || err.Reason == Draining) {
		delay := min(float64(minRetryDelay)*math.Exp2(float64(attempt)), float64(maxRetryDelay))
		return time.Duration(delay * (0.5 + mathrand.Float64()*0.5)), true
	}
	return 0, false
}

func newID() string {
	var id [16]byte
	// It never fails.
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
