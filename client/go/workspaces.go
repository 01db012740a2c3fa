package jig

import (
	"context"

	"jig.example/client/jigv1"
)

// CreateWorkspace creates a workspace, and returns it with a client that uses it.
//
// Without a name, the daemon chooses one. With CloneOf, it has a copy of the files of another one.
func (c *Client) CreateWorkspace(ctx context.Context, request *jigv1.CreateWorkspaceRequest) (*jigv1.WorkspaceDetails, *Client, error) {
	response, err := c.Workspaces.CreateWorkspace(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	workspace := response.GetWorkspace()
	inside, err := c.With(WithWorkspace(workspace.GetName()), WithRequestID(""))
	return workspace, inside, err
}

// DeleteWorkspace deletes a created workspace, with its files, sessions and jobs. It ends its
// commands first.
func (c *Client) DeleteWorkspace(ctx context.Context, name string) error {
	_, err := c.Workspaces.DeleteWorkspace(ctx, &jigv1.DeleteWorkspaceRequest{Name: name})
	return err
}
