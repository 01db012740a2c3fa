//! Debuggers and tracers, where the operator allows them.

use super::{run_script, try_script, with_each_daemon};
use crate::support::Setup;

with_each_daemon!(debuggers_work_where_they_are_allowed, leaks_are_found_where_tracing_is_allowed);

const ALLOW_PTRACE_TABLE: &str = "[sandbox]\nallow_ptrace = true";
const PROGRAM: &str = r#"
cat > program.c <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int deep(int n) { return n == 0 ? *(volatile int *)0 : deep(n - 1) + 1; }
int main(int count, char **words) {
    char *lost = strdup("lost"); lost = 0;
    puts("begun"); fflush(stdout);
    return count > 1 ? deep(atoi(words[1])) : lost != 0;
}
END
gcc -g -O0 -o program program.c
"#;

async fn debuggers_work_where_they_are_allowed(setup: Setup) {
    let daemon = setup.workspace_table(ALLOW_PTRACE_TABLE).start().await;

    run_script(&daemon, PROGRAM).await;
    let trace = "gdb -q -batch -ex 'break deep' -ex 'run 2' -ex 'print n' -ex bt -ex delete -ex continue -ex bt ./program 2>&1";
    let output = run_script(&daemon, trace).await;
    assert!(output.contains("$1 = 2\n"), "{output}");
    assert!(output.contains("SIGSEGV") && output.contains("#3 "), "{output}");
    assert!(!output.contains("Operation not permitted"), "{output}");

    // Attaching to a running process that is not a child of gdb.
    let attach =
        "sleep 100 & gdb -q -batch -p $! -ex 'info proc' 2>&1 | grep -c 'exe = .*/sleep'; kill %1";
    assert_eq!(run_script(&daemon, attach).await, "1\n");

    let strace = "strace -f -o log -e trace=openat,execve sh -c 'cat program.c > /dev/null; true'; grep -c 'openat.*program.c' log; strace -c true 2>&1 | grep -c execve";
    assert_eq!(run_script(&daemon, strace).await, "1\n1\n");
}

async fn leaks_are_found_where_tracing_is_allowed(setup: Setup) {
    let daemon = setup.workspace_table(ALLOW_PTRACE_TABLE).start().await;
    run_script(&daemon, PROGRAM).await;
    let leak = "gcc -g -O0 -fsanitize=address -o leaks program.c; ./leaks";
    let response = try_script(&daemon, leak, &[]).await;
    assert!(response.stderr.contains("5 byte(s) leaked"), "{}", response.stderr);
}
