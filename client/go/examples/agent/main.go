// An agent: a model, and a loop that runs its tool calls in sandboxes.
//
// Usage: JIG_ADDRESS=127.0.0.1:50051 go run ./examples/agent
//
// A script replaces the model. A real one gets `tools` and `messages` with each request.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	jig "jig.example/client"
	"jig.example/client/jigv1"
)

const maxRounds = 20

var script = []*jigv1.BatchCall{
	{CallId: "call_0", Name: "write_file", ArgumentsJson: `{"path": "greet.sh", "content": "echo hello from the sandbox\n"}`},
	{CallId: "call_1", Name: "run", ArgumentsJson: `{"command": "sh greet.sh", "timeout_sec": 10}`},
}

func main() {
	log.SetFlags(0)
	client, err := jig.Connect("", jig.WithSession("agent"))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := runAgent(context.Background(), client); err != nil {
		log.Fatal(err)
	}
}

func runAgent(ctx context.Context, client *jig.Client) error {
	format := jigv1.ToolFormat_TOOL_FORMAT_ANTHROPIC
	tools, err := client.Catalog.ListTools(ctx, &jigv1.ListToolsRequest{Format: format.Enum()})
	if err != nil {
		return err
	}
	var messages []json.RawMessage
	for range maxRounds {
		calls := askModel(tools.GetToolsJson(), messages)
		if len(calls) == 0 {
			fmt.Printf("done: %s\n", messages[len(messages)-1])
			return nil
		}
		batch, err := client.Invoke.InvokeBatch(ctx, &jigv1.InvokeBatchRequest{Calls: calls, ResultFormat: format.Enum()})
		if err != nil {
			return err
		}
		for _, result := range batch.GetResults() {
			fmt.Printf("%s: %t\n", result.GetName(), result.GetOk())
		}
		messages = append(messages, json.RawMessage(batch.GetMessagesJson()))
	}
	return fmt.Errorf("the model has not finished after %d rounds", maxRounds)
}

// askModel returns the tool calls of a reply: a file, a command, and none at the end.
func askModel(_ string, messages []json.RawMessage) []*jigv1.BatchCall {
	if len(messages) == len(script) {
		return nil
	}
	return script[len(messages) : len(messages)+1]
}
