package jig_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	jig "jig.example/client"
	"jig.example/client/jigv1"
)

// archive makes a tar archive of a directory.
func archive(t *testing.T, directory string) *bytes.Reader {
	t.Helper()
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	check(t, writer.AddFS(os.DirFS(directory)))
	check(t, writer.Close())
	return bytes.NewReader(buffer.Bytes())
}

// contents returns the files and links of an archive, by name.
func contents(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	found := map[string]string{}
	for reader := tar.NewReader(archive); ; {
		member, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		check(t, err)
		content, err := io.ReadAll(reader)
		check(t, err)
		if member.Typeflag != tar.TypeDir {
			found[member.Name] = fmt.Sprintf("%o %s%s", member.Mode, member.Linkname, content)
		}
	}
}

func TestTrees(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	root, directory := fmt.Sprint("trees-", time.Now().UnixNano()), t.TempDir()
	check(t, os.MkdirAll(filepath.Join(directory, "d", "empty"), 0o755))
	check(t, os.WriteFile(filepath.Join(directory, "d", "run"), bytes.Repeat([]byte("x"), 700_000), 0o755))
	check(t, os.WriteFile(filepath.Join(directory, "a"), []byte("hello"), 0o644))
	check(t, os.Symlink("../a", filepath.Join(directory, "d", "up")))
	start := &jigv1.UploadTreeStart{Path: proto.String(root)}
	uploaded, err := client.UploadTree(ctx, start, archive(t, directory))
	check(t, err)
	expect(t, fmt.Sprint(uploaded.GetFiles(), uploaded.GetDirectories(), uploaded.GetSymlinks()), "2 2 1")

	var buffer bytes.Buffer
	request := &jigv1.DownloadTreeRequest{Path: proto.String(root)}
	summary, err := client.DownloadTree(ctx, request, &buffer)
	check(t, err)
	expect(t, summary.GetFiles(), 2)
	expect(t, fmt.Sprint(contents(t, &buffer)), fmt.Sprint(contents(t, archive(t, directory))))
	_, err = client.DownloadTree(ctx, &jigv1.DownloadTreeRequest{Path: proto.String("none")}, io.Discard)
	expectReason(t, err, jig.DirectoryNotFound)

	start.Mode = jigv1.WriteMode_WRITE_MODE_CREATE_NEW.Enum()
	_, err = client.UploadTree(ctx, start, archive(t, directory))
	expectReason(t, err, jig.FileExists)
	var failure *jig.Error
	if !errors.As(err, &failure) {
		t.Fatal(err)
	}
	expect(t, failure.Metadata["member"], "a")
	_, err = client.UploadTree(ctx, start, bytes.NewReader(bytes.Repeat([]byte("no archive"), 100)))
	expectReason(t, err, jig.InvalidArchive)
	file, err := os.Open(directory)
	check(t, err)
	defer file.Close()
	// A directory can be opened, but not read.
	_, err = client.UploadTree(ctx, start, file)
	var local *os.PathError
	expect(t, errors.As(err, &local), true)
}

// brokenTransfers answers downloads of trees with the same messages.
type brokenTransfers struct {
	jigv1.UnimplementedTransferServiceHandler
	messages []*jigv1.DownloadTreeResponse
}

func (b *brokenTransfers) DownloadTree(_ context.Context, _ *jigv1.DownloadTreeRequest, stream *connect.ServerStream[jigv1.DownloadTreeResponse]) error {
	for _, message := range b.messages {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return nil
}

func TestDamagedTreesAreErrors(t *testing.T) {
	transfers := &brokenTransfers{}
	mux := http.NewServeMux()
	mux.Handle(jigv1.NewTransferServiceHandler(transfers))
	server := httptest.NewServer(mux)
	defer server.Close()
	client := open(t, server.URL, jig.WithHTTP1())
	data := []byte("some bytes")
	sum := sha256.Sum256(data)
	right := &jigv1.DownloadTreeSummary{Sha256: hex.EncodeToString(sum[:])}
	for _, messages := range [][]*jigv1.DownloadTreeResponse{
		{},
		{{Data: data}},
		{{Data: data, Summary: &jigv1.DownloadTreeSummary{}}},
		{{Data: data, Summary: right}, {Data: data}},
	} {
		transfers.messages = messages
		_, err := client.DownloadTree(timed(t), &jigv1.DownloadTreeRequest{}, io.Discard)
		expectReason(t, err, jig.ChecksumMismatch)
	}
	transfers.messages = []*jigv1.DownloadTreeResponse{{Data: data}, {Summary: right}}
	var buffer bytes.Buffer
	_, err := client.DownloadTree(timed(t), &jigv1.DownloadTreeRequest{}, &buffer)
	check(t, err)
	expect(t, buffer.String(), "some bytes")
}

func TestUploadsOfTreesStartAgainAfterCuts(t *testing.T) {
	var cuts atomic.Int64
	address := cuttingProxy(t, &cuts)
	directory := t.TempDir()
	check(t, os.WriteFile(filepath.Join(directory, "file"), bytes.Repeat([]byte("0123456789abcdef"), 20_000), 0o644))
	for name, options := range map[string][]jig.Option{
		"http2": {jig.WithRetries(10)},
		"http1": {jig.WithRetries(10), jig.WithHTTP1()},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, client := timed(t), open(t, address, options...)
			cuts.Store(0)
			for range 8 {
				start := &jigv1.UploadTreeStart{Path: proto.String("go-cut-tree-" + name)}
				uploaded, err := client.UploadTree(ctx, start, archive(t, directory))
				check(t, err)
				expect(t, uploaded.GetFiles(), 1)
			}
			expect(t, cuts.Load() > 3, true)
		})
	}
}
