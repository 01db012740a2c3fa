package jig

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	"jig.example/client/jigv1"
)

// UploadTree extracts the tar archive of a reader into a directory of the workspace, which is created
// if it is missing. Package archive/tar makes such an archive: AddFS of its Writer, of os.DirFS.
//
// After a lost connection, it starts again. After another error, the members before the rejected one
// are in place. The metadata "member" of the [Error] names it.
func (c *Client) UploadTree(ctx context.Context, start *jigv1.UploadTreeStart, archive io.ReadSeeker) (*jigv1.UploadTreeResponse, error) {
	ctx, cancel := c.options.withTimeout(ctx)
	defer cancel()
	attempts := newAttempts(c.options)
	for {
		response, err := c.uploadTree(context.WithValue(ctx, attemptsKey{}, attempts), start, archive)
		if err == nil {
			return response, nil
		}
		if err := attempts.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

func (c *Client) uploadTree(ctx context.Context, start *jigv1.UploadTreeStart, archive io.ReadSeeker) (*jigv1.UploadTreeResponse, error) {
	if _, err := archive.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Transfer.UploadTree(ctx)
	if err != nil {
		return nil, toError(err)
	}
	first := &jigv1.UploadTreeRequest{Part: &jigv1.UploadTreeRequest_Start{Start: start}}
	err = sendChunks(stream.Send, first, archive, func(data []byte) *jigv1.UploadTreeRequest {
		return &jigv1.UploadTreeRequest{Part: &jigv1.UploadTreeRequest_Data{Data: data}}
	})
	if err != nil {
		return nil, err
	}
	response, err := stream.CloseAndReceive()
	return response, toError(err)
}

// DownloadTree writes a directory of the workspace into a writer, as a tar archive. Commands and
// models may have written any of it: extract it with [os.Root], which keeps files in a directory.
//
// It returns what the archive contains. After an error, what the writer has is not valid.
func (c *Client) DownloadTree(ctx context.Context, request *jigv1.DownloadTreeRequest, writer io.Writer) (*jigv1.DownloadTreeSummary, error) {
	ctx, cancel := c.options.withTimeout(ctx)
	defer cancel()
	attempts := newAttempts(c.options)
	for {
		hasData, summary, err := c.downloadTree(ctx, request, writer)
		if err == nil {
			return summary, nil
		}
		if hasData {
			return nil, err
		}
		if err := attempts.wait(ctx, err); err != nil {
			return nil, err
		}
	}
}

// downloadTree also reports whether the writer has got data: a second attempt would repeat them.
func (c *Client) downloadTree(ctx context.Context, request *jigv1.DownloadTreeRequest, writer io.Writer) (hasData bool, summary *jigv1.DownloadTreeSummary, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Transfer.DownloadTree(ctx, request)
	if err != nil {
		return false, nil, toError(err)
	}
	defer stream.Close()
	digest := sha256.New()
	for stream.Receive() {
		message := stream.Msg()
		hasData = true
		digest.Write(message.GetData())
		if _, err := writer.Write(message.GetData()); err != nil {
			return hasData, nil, err
		}
		summary = message.GetSummary()
	}
	if err := stream.Err(); err != nil {
		return hasData, nil, toError(err)
	}
	if summary.GetSha256() != hex.EncodeToString(digest.Sum(nil)) {
		return hasData, nil, &Error{Reason: ChecksumMismatch, Message: "the archive arrived damaged: start again"}
	}
	return hasData, summary, nil
}

// sendChunks sends a message, and then the rest of a reader in chunks.
func sendChunks[M any](send func(*M) error, first *M, reader io.Reader, chunk func([]byte) *M) error {
	request := first
	buffer := make([]byte, chunkBytes)
	for {
		// After an error of the daemon, it is io.EOF, and the response has the error.
		if err := send(request); err != nil {
			return nil
		}
		count, err := io.ReadFull(reader, buffer)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if count == 0 {
			return nil
		}
		request = chunk(buffer[:count])
	}
}
