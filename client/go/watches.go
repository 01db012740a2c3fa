package jig

import (
	"context"
	"iter"

	"jig.example/client/jigv1"
)

// WatchFiles streams the changes below a directory: messages with Ready or with Changes.
//
// The first message is Ready: all later changes are reported. List the directory after it. After a
// lost connection, the watch starts again with another Ready: changes may have been missed, so list
// the directory again. The same holds for the directory of a change of kind RESCAN.
func (c *Client) WatchFiles(ctx context.Context, request *jigv1.WatchFilesRequest) iter.Seq2[*jigv1.WatchFilesResponse, error] {
	return func(yield func(*jigv1.WatchFilesResponse, error) bool) {
		open := func(ctx context.Context) (*source, error) {
			stream, err := c.Watches.WatchFiles(ctx, request)
			return newSource(stream, err)
		}
		for message, err := range follow(ctx, c.options, open) {
			if err != nil {
				yield(nil, err)
				return
			}
			item := message.(*jigv1.WatchFilesResponse)
			if item.GetReady() == nil && item.GetChanges() == nil {
				continue
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}
