package jig

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// DefaultRetries is the maximum number of retries of a call, unless [WithRetries] sets another.
const DefaultRetries = 5

var traceparentForm = regexp.MustCompile(`(?i)^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// Option changes how a client calls.
type Option func(*options)

type options struct {
	key, workspace, session, traceparent string
	requestID                            string
	timeout                              time.Duration
	retries                              int
	ca, certificate, certificateKey      string
	isHTTP1                              bool
}

// WithKey sets the API key. By default, JIG_KEY.
func WithKey(key string) Option { return func(o *options) { o.key = key } }

// WithWorkspace sets the workspace. By default, JIG_WORKSPACE, or else the first one of the daemon.
func WithWorkspace(name string) Option { return func(o *options) { o.workspace = name } }

// WithSession sets the conversation that the calls belong to. By default, JIG_SESSION.
func WithSession(name string) Option { return func(o *options) { o.session = name } }

// WithTimeout limits each call with its retries. By default, JIG_DEADLINE, in seconds. The deadline
// of a context limits it too.
func WithTimeout(timeout time.Duration) Option { return func(o *options) { o.timeout = timeout } }

// WithRetries sets the maximum number of retries of a call.
//
// With 0, calls have no request id unless [WithRequestID] sets it. A call that is cancelled then
// ends its command at once. With a request id, the command continues for 30 seconds by default.
func WithRetries(count int) Option { return func(o *options) { o.retries = count } }

// WithRequestID sets the idempotency key of the next call that changes something. By default, each
// has a new one.
func WithRequestID(id string) Option { return func(o *options) { o.requestID = id } }

// WithTraceparent sets the W3C trace context of the calls. By default, TRACEPARENT.
func WithTraceparent(value string) Option { return func(o *options) { o.traceparent = value } }

// WithCA sets the PEM file with the CA certificates of the daemon. By default, JIG_CA, or else the
// system's.
func WithCA(file string) Option { return func(o *options) { o.ca = file } }

// WithClientCertificate sets the PEM files of a client certificate and its key. By default,
// JIG_CLIENT_CERT and JIG_CLIENT_KEY.
func WithClientCertificate(certificate, key string) Option {
	return func(o *options) { o.certificate, o.certificateKey = certificate, key }
}

// WithHTTP1 uses HTTP/1.1, which a proxy in between can need.
func WithHTTP1() Option { return func(o *options) { o.isHTTP1 = true } }

// newOptions takes options that are not given from the environment.
func newOptions(changes []Option, getenv func(string) string) (options, error) {
	o := options{
		key:            getenv("JIG_KEY"),
		workspace:      getenv("JIG_WORKSPACE"),
		session:        getenv("JIG_SESSION"),
		ca:             getenv("JIG_CA"),
		certificate:    getenv("JIG_CLIENT_CERT"),
		certificateKey: getenv("JIG_CLIENT_KEY"),
		retries:        DefaultRetries,
	}
	// A malformed value starts a new trace, as W3C Trace Context requires.
	if value := getenv("TRACEPARENT"); traceparentForm.MatchString(value) {
		o.traceparent = value
	}
	if text := getenv("JIG_DEADLINE"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || seconds <= 0 {
			return o, fmt.Errorf("JIG_DEADLINE is %q; it must be a number of seconds, such as 30 or 0.5", text)
		}
		o.timeout = time.Duration(seconds * float64(time.Second))
	}
	return o.with(changes)
}

// with returns changed options. It rejects values that headers cannot have.
func (o options) with(changes []Option) (options, error) {
	for _, change := range changes {
		change(&o)
	}
	if o.timeout < 0 {
		return o, fmt.Errorf("the timeout is %s; it must be above 0", o.timeout)
	}
	for name, values := range o.header() {
		if strings.ContainsFunc(values[0], func(r rune) bool { return r < ' ' || r > '~' }) {
			return o, fmt.Errorf("the value of %s must be printable ASCII", name)
		}
	}
	return o, nil
}

// withTimeout limits the context of a call.
func (o options) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, o.timeout)
}

// header returns the headers that each call carries.
func (o options) header() http.Header {
	header := http.Header{}
	set := func(name, value string) {
		if value != "" {
			header.Set(name, value)
		}
	}
	if o.key != "" {
		set("Authorization", "Bearer "+o.key)
	}
	set("Jig-Workspace", o.workspace)
	set("Jig-Session", o.session)
	set("Jig-Request-Id", o.requestID)
	set("Traceparent", o.traceparent)
	return header
}

// tlsConfig reads the certificates. It is nil for a connection without TLS.
func (o options) tlsConfig(t target) (*tls.Config, error) {
	if !t.isTLS {
		if o.ca != "" || o.certificate != "" || o.certificateKey != "" {
			return nil, fmt.Errorf("CA and client certificate need an address with TLS: write https://%s", t.authority)
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", o.ca)
		}
	}
	if (o.certificate == "") != (o.certificateKey == "") {
		return nil, fmt.Errorf("a client certificate needs both its file and its key")
	}
	if o.certificate != "" {
		certificate, err := tls.LoadX509KeyPair(o.certificate, o.certificateKey)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
