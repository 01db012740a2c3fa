// Package jig is a client of jig: sandboxed commands and files for AI agents.
//
//	client, err := jig.Connect("unix:/run/jig.sock")
//	result, err := client.Run(ctx, jig.Shell("ls"))
//
// [Client] has methods for commands, files and jobs. Its fields are the services of the contract,
// such as [Client.Tools], with all RPCs. Calls of both carry the options of the client, and are
// repeated under their request id. Their errors are [Error]s:
//
//	if errors.Is(err, jig.FileNotFound) { … }
package jig

//go:generate go run ./internal/generate
