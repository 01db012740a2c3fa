package jig_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"jig.example/client/jigv1"
)

func TestWatchFiles(t *testing.T) {
	ctx, client := timed(t), open(t, socket)
	root := fmt.Sprint("watches-", time.Now().UnixNano())
	_, err := client.Tools.CreateDirectory(ctx, &jigv1.CreateDirectoryRequest{Path: root})
	check(t, err)
	request := &jigv1.WatchFilesRequest{Path: proto.String(root)}
	isReady := false
	for message, err := range client.WatchFiles(ctx, request) {
		check(t, err)
		if message.GetReady() != nil {
			isReady = true
			_, err := client.Tools.CreateDirectory(ctx, &jigv1.CreateDirectoryRequest{Path: root + "/d"})
			check(t, err)
			continue
		}
		change := message.GetChanges().GetChanges()[0]
		if !isReady || change.GetPath() != root+"/d" || change.GetKind() != jigv1.ChangeKind_CHANGE_KIND_CREATED {
			t.Fatalf("the first change is %v", change)
		}
		break
	}
	for _, err := range client.WatchFiles(ctx, &jigv1.WatchFilesRequest{Path: proto.String("../x")}) {
		if err == nil {
			t.Fatal("a path out of the workspace is watched")
		}
	}
}
