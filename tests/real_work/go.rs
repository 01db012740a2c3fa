//! Go, whose caches are in the home directory.

use super::{run_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(go_builds_and_tests);

async fn go_builds_and_tests(setup: Setup) {
    // Where the official tarball is unpacked, in addition to the path of the Debian package.
    let daemon = setup.arguments(&["--path", "/usr/local/go/bin"]).start().await;
    let script = r#"
export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local
mkdir part; go mod init sample 2>/dev/null
echo 'package part; func Seven() int { return 7 }' > part/part.go
cat > main.go <<'END'
package main
import ("fmt"; "os/exec"; "os/user"; "sample/part")
func answer() int { done := make(chan int); go func() { done <- 6 * part.Seven() }(); return <-done }
func main() {
	said, err := exec.Command("echo", "child").Output()
	if err != nil { panic(err) }
	who, _ := user.Current()
	fmt.Print(answer(), " ", who.Username, " ", string(said))
}
END
cat > main_test.go <<'END'
package main
import ("os"; "testing")
func TestAnswer(t *testing.T) { t.Parallel(); if answer() != 42 { t.Fatal(answer()) }; if err := os.WriteFile(t.TempDir() + "/f", nil, 0o600); err != nil { t.Fatal(err) } }
END
go build -o program . ; ./program; go test ./... | grep -o '^ok'; test -d "$(go env GOCACHE)"; go env GOCACHE
"#;
    let output = run_script(&daemon, script).await;
    assert_eq!(output, "42 agent child\nok\n/home/agent/.cache/go-build\n");
}
