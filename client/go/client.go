package jig

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"jig.example/client/jigv1"
)

const (
	addressHint       = "write host:port, http://host:port, https://host:port or unix:/path"
	keepAliveInterval = 30 * time.Second
	keepAliveTimeout  = 20 * time.Second
)

// Client calls a daemon. Goroutines can share it.
//
// Its fields are the services of the contract.
type Client struct {
	Approvals jigv1.ApprovalServiceClient
	Artifacts jigv1.ArtifactServiceClient
	Catalog   jigv1.CatalogServiceClient
	Daemon    jigv1.DaemonServiceClient
	Events    jigv1.EventServiceClient
	Invoke    jigv1.InvokeServiceClient
	Jobs      jigv1.JobServiceClient
	Processes jigv1.ProcessServiceClient
	Tools     jigv1.ToolServiceClient
	Transfer  jigv1.TransferServiceClient
	Watches   jigv1.WatchServiceClient
	// Workspaces creates and deletes workspaces. [WithWorkspace] uses one.
	Workspaces jigv1.WorkspaceServiceClient

	options   options
	target    target
	transport *http.Transport
}

// Connect makes a client of the daemon at an address, by default that of JIG_ADDRESS.
//
// An address is host:port, http://host:port, https://host:port (TLS) or unix:/path. Options that are
// not given come from the environment. The first call connects.
func Connect(address string, changes ...Option) (*Client, error) {
	if address == "" {
		address = os.Getenv("JIG_ADDRESS")
	}
	target, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	options, err := newOptions(changes, os.Getenv)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport(target, options)
	if err != nil {
		return nil, err
	}
	return newClient(target, options, transport), nil
}

// With returns a client with other options and the same connection. Changes of certificates and of
// the version of HTTP have no effect.
func (c *Client) With(changes ...Option) (*Client, error) {
	options, err := c.options.with(changes)
	if err != nil {
		return nil, err
	}
	return newClient(c.target, options, c.transport), nil
}

// Close closes the connection, also of the clients that With returned.
func (c *Client) Close() {
	c.transport.CloseIdleConnections()
}

func newClient(target target, options options, transport *http.Transport) *Client {
	caller := &http.Client{Transport: transport}
	url := target.url
	interceptor := connect.WithInterceptors(&interceptor{options})
	return &Client{
		Approvals:  jigv1.NewApprovalServiceClient(caller, url, interceptor),
		Artifacts:  jigv1.NewArtifactServiceClient(caller, url, interceptor),
		Catalog:    jigv1.NewCatalogServiceClient(caller, url, interceptor),
		Daemon:     jigv1.NewDaemonServiceClient(caller, url, interceptor),
		Events:     jigv1.NewEventServiceClient(caller, url, interceptor),
		Invoke:     jigv1.NewInvokeServiceClient(caller, url, interceptor),
		Jobs:       jigv1.NewJobServiceClient(caller, url, interceptor),
		Processes:  jigv1.NewProcessServiceClient(caller, url, interceptor),
		Tools:      jigv1.NewToolServiceClient(caller, url, interceptor),
		Transfer:   jigv1.NewTransferServiceClient(caller, url, interceptor),
		Watches:    jigv1.NewWatchServiceClient(caller, url, interceptor),
		Workspaces: jigv1.NewWorkspaceServiceClient(caller, url, interceptor),

		options:   options,
		target:    target,
		transport: transport,
	}
}

func newTransport(t target, o options) (*http.Transport, error) {
	config, err := o.tlsConfig(t)
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(o.isHTTP1)
	protocols.SetHTTP2(!o.isHTTP1 && t.isTLS)
	protocols.SetUnencryptedHTTP2(!o.isHTTP1 && !t.isTLS)
	transport := &http.Transport{
		Protocols:       protocols,
		TLSClientConfig: config,
		HTTP2:           &http.HTTP2Config{SendPingTimeout: keepAliveInterval, PingTimeout: keepAliveTimeout},
	}
	if t.socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", t.socket)
		}
	}
	return transport, nil
}

// target is an address, as HTTP takes it.
type target struct {
	url       string
	authority string
	socket    string
	isTLS     bool
}

func parseAddress(address string) (target, error) {
	invalid := func(problem string) (target, error) {
		return target{}, fmt.Errorf("%q is not an address: %s", address, problem)
	}
	if address == "" {
		return target{}, fmt.Errorf("no address: give one, or set JIG_ADDRESS")
	}
	if path, isUnix := strings.CutPrefix(address, "unix:"); isUnix {
		// unix://HOST/PATH names a socket of another machine, which cannot be reached.
		if rest, hasAuthority := strings.CutPrefix(path, "//"); hasAuthority {
			path = rest
			if !strings.HasPrefix(path, "/") {
				return invalid("write unix:/path or unix:///path")
			}
		}
		if path == "" {
			return invalid("a path must follow unix:")
		}
		return target{url: "http://localhost", socket: path}, nil
	}

	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	parts, err := url.Parse(address)
	if err != nil || parts.Scheme != "http" && parts.Scheme != "https" {
		return invalid(addressHint)
	}
	if parts.User != nil {
		return invalid("set the key in JIG_KEY, not in the address")
	}
	port, err := strconv.ParseUint(parts.Port(), 10, 16)
	isBare := strings.TrimSuffix(address, "/") == parts.Scheme+"://"+parts.Host
	if err != nil || port == 0 || parts.Hostname() == "" || !isBare {
		return invalid(addressHint)
	}
	return target{url: parts.Scheme + "://" + parts.Host, authority: parts.Host, isTLS: parts.Scheme == "https"}, nil
}
