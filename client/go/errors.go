package jig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

// Reason is the reason of an error, such as [FileNotFound]. It is the target of [errors.Is].
type Reason string

// Error makes a reason comparable with errors.
func (r Reason) Error() string { return string(r) }

// Violation is a field of a request that violates its rules.
type Violation struct {
	// Field is the path of the field in the request, such as edits[0].old_string.
	Field string
	// Description is the rule that the value violates.
	Description string
}

// Error is a call that failed.
type Error struct {
	// Code is the gRPC code.
	Code connect.Code
	// Reason is the reason in the contract. It is empty if the daemon gave none.
	Reason Reason
	// Message says what happened, and what to do.
	Message string
	// Metadata has the values in the message, by name.
	Metadata map[string]string
	// Violations are the invalid fields of the request.
	Violations []Violation
	// RetryDelay is the time after which a retry can succeed. It is 0 if the daemon suggests none.
	RetryDelay time.Duration
	// CallID identifies the call in the log of the daemon. It is empty if the daemon was not reached.
	CallID string

	cause error
}

// Error returns the message, with the reason.
func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

// Is reports whether the target is the reason of the error.
func (e *Error) Is(target error) bool {
	reason, isReason := target.(Reason)
	return isReason && reason == e.Reason
}

// Unwrap returns the error of the connection.
func (e *Error) Unwrap() error { return e.cause }

// toError converts an error of a call. Errors that are none of a call stay as they are.
func toError(err error) error {
	var known *Error
	var failure *connect.Error
	if err == nil || errors.As(err, &known) || !errors.As(err, &failure) {
		return err
	}
	result := &Error{
		Code:    failure.Code(),
		Message: failure.Message(),
		CallID:  failure.Meta().Get("Jig-Call-Id"),
		cause:   err,
	}
	for _, detail := range failure.Details() {
		value, err := detail.Value()
		if err != nil {
			continue
		}
		switch value := value.(type) {
		case *errdetails.ErrorInfo:
			result.Reason, result.Metadata = Reason(value.GetReason()), value.GetMetadata()
		case *errdetails.RetryInfo:
			result.RetryDelay = value.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			for _, violation := range value.GetFieldViolations() {
				result.Violations = append(result.Violations, Violation{violation.GetField(), violation.GetDescription()})
			}
		}
	}
	if result.Reason == "" {
		switch result.Code {
		case connect.CodeDeadlineExceeded:
			result.Reason = Timeout
		case connect.CodeInternal, connect.CodeInvalidArgument, connect.CodeUnknown, connect.CodeCanceled:
			// Errors of the daemon have a reason: this one is of the connection.
			if !errors.Is(err, context.Canceled) {
				result.Code = connect.CodeUnavailable
			}
		}
	}
	return result
}
