package jig

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"google.golang.org/protobuf/proto"
	"jig.example/client/jigv1"
)

// chunkBytes are those of a message of an upload. The daemon keeps whole chunks of an interrupted
// one.
const chunkBytes = 128 << 10

// WriteFile writes a file of up to 10 MiB atomically, with its missing directories. Upload writes
// files of any size, and Tools.WriteFile has more options.
func (c *Client) WriteFile(ctx context.Context, path string, content []byte) error {
	_, err := c.Tools.WriteFile(ctx, &jigv1.WriteFileRequest{
		Path:     path,
		Content:  base64.StdEncoding.EncodeToString(content),
		Encoding: jigv1.Encoding_ENCODING_BASE64.Enum(),
	})
	return err
}

// ReadFile returns the bytes of a file of any size.
func (c *Client) ReadFile(ctx context.Context, path string) ([]byte, error) {
	var content bytes.Buffer
	_, err := c.Download(ctx, path, &content)
	return content.Bytes(), err
}

// Download copies a file into a writer. It continues after a lost connection.
//
// It returns the description of the file, without data. After [StaleFile], the file changed during
// the copy, and the writer has bytes of both states.
func (c *Client) Download(ctx context.Context, path string, writer io.Writer) (*jigv1.DownloadResponse, error) {
	var last *jigv1.DownloadResponse
	received := uint64(0)
	var digest hash.Hash
	open := func(ctx context.Context) (*source, error) {
		digest = sha256.New()
		request := &jigv1.DownloadRequest{Path: path, Offset: received}
		if last != nil {
			request.ExpectedVersion = proto.String(last.GetVersion())
		}
		stream, err := c.Transfer.Download(ctx, request)
		return newSource(stream, err)
	}
	for message, err := range follow(ctx, c.options, open) {
		if err != nil {
			return nil, err
		}
		part := message.(*jigv1.DownloadResponse)
		if last != nil && part.GetVersion() != last.GetVersion() {
			return nil, &Error{Reason: StaleFile, Message: path + " changed during the download: start again"}
		}
		last = part
		received += uint64(len(part.GetData()))
		digest.Write(part.GetData())
		if part.Sha256 != nil && part.GetSha256() != hex.EncodeToString(digest.Sum(nil)) {
			return nil, &Error{Reason: ChecksumMismatch, Message: path + " arrived damaged: start again"}
		}
		if _, err := writer.Write(part.GetData()); err != nil {
			return nil, err
		}
	}
	if last == nil {
		return nil, fmt.Errorf("the download of %s had no message", path)
	}
	last.Data = nil
	return last, nil
}

// Upload writes a file atomically from the whole of a reader. It continues after a lost connection.
//
// The request has the path and the options. Upload sets its size, checksum and upload id.
func (c *Client) Upload(ctx context.Context, start *jigv1.UploadStart, reader io.ReadSeeker) (*jigv1.UploadResponse, error) {
	if _, err := reader.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	digest := sha256.New()
	size, err := io.Copy(digest, reader)
	if err != nil {
		return nil, err
	}
	start = proto.CloneOf(start)
	start.SizeBytes = uint64(size)
	start.Sha256 = hex.EncodeToString(digest.Sum(nil))
	start.UploadId = proto.String(newID())

	ctx, cancel := c.options.withTimeout(ctx)
	defer cancel()
	attempts := newAttempts(c.options)
	offset := uint64(0)
	for {
		response, err := c.upload(context.WithValue(ctx, attemptsKey{}, attempts), start, reader, offset)
		if err == nil {
			return response, nil
		}
		if err := attempts.wait(ctx, err); err != nil {
			return nil, err
		}
		previous := offset
		if offset, err = c.uploadOffset(ctx, start.GetUploadId()); err != nil {
			return nil, err
		}
		if offset > previous {
			attempts.progress()
		}
	}
}

func (c *Client) upload(ctx context.Context, start *jigv1.UploadStart, reader io.ReadSeeker, offset uint64) (*jigv1.UploadResponse, error) {
	if _, err := reader.Seek(int64(offset), io.SeekStart); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Transfer.Upload(ctx)
	if err != nil {
		return nil, toError(err)
	}
	first := &jigv1.UploadRequest{Part: &jigv1.UploadRequest_Start{Start: start}}
	err = sendChunks(stream.Send, first, reader, func(data []byte) *jigv1.UploadRequest {
		chunk := &jigv1.UploadChunk{Offset: offset, Data: data}
		offset += uint64(len(data))
		return &jigv1.UploadRequest{Part: &jigv1.UploadRequest_Chunk{Chunk: chunk}}
	})
	if err != nil {
		return nil, err
	}
	response, err := stream.CloseAndReceive()
	return response, toError(err)
}

// uploadOffset returns the number of bytes that the daemon has of an upload.
func (c *Client) uploadOffset(ctx context.Context, id string) (uint64, error) {
	upload, err := c.Transfer.GetUpload(ctx, &jigv1.GetUploadRequest{UploadId: id})
	if errors.Is(err, UploadNotFound) {
		return 0, nil
	}
	return upload.GetOffset(), err
}
