package jig

import (
	"context"
	"encoding/json"
	"iter"

	"jig.example/client/jigv1"
)

// SubmitJob queues a call of a tool. It returns when the job is stored.
//
// The parameters become JSON: a map, or a struct with the names of the tool.
func (c *Client) SubmitJob(ctx context.Context, tool string, parameters any) (*jigv1.Job, error) {
	text, err := json.Marshal(parameters)
	if err != nil {
		return nil, err
	}
	request := &jigv1.SubmitJobRequest{Tool: tool, ParamsJson: string(text)}
	response, err := c.Jobs.SubmitJob(ctx, request)
	return response.GetJob(), err
}

// WaitJob waits until a job has ended, and returns it with its result.
func (c *Client) WaitJob(ctx context.Context, id string) (*jigv1.Job, error) {
	response, err := c.Jobs.WaitJob(ctx, &jigv1.WaitJobRequest{JobId: id})
	return response.GetJob(), err
}

// CancelJob cancels a job, waits until it has ended, and returns it.
func (c *Client) CancelJob(ctx context.Context, id string) (*jigv1.Job, error) {
	response, err := c.Jobs.CancelJob(ctx, &jigv1.CancelJobRequest{JobId: id})
	return response.GetJob(), err
}

// WatchJob streams a job after each change of its state, and the output of its command. The last
// message is the ended job. The stream continues after a lost connection.
func (c *Client) WatchJob(ctx context.Context, id string) iter.Seq2[*jigv1.WatchJobResponse, error] {
	return func(yield func(*jigv1.WatchJobResponse, error) bool) {
		var stdout, stderr uint64
		open := func(ctx context.Context) (*source, error) {
			stream, err := c.Jobs.WatchJob(ctx, &jigv1.WatchJobRequest{
				JobId:        id,
				StdoutOffset: stdout,
				StderrOffset: stderr,
			})
			return newSource(stream, err)
		}
		for message, err := range follow(ctx, c.options, open) {
			if err != nil {
				yield(nil, err)
				return
			}
			event := message.(*jigv1.WatchJobResponse)
			if output := event.GetStdout(); output != nil {
				stdout = output.GetOffset() + uint64(len(output.GetData()))
			}
			if output := event.GetStderr(); output != nil {
				stderr = output.GetOffset() + uint64(len(output.GetData()))
			}
			if event.GetKeepAlive() != nil {
				continue
			}
			if !yield(event, nil) {
				return
			}
		}
	}
}
