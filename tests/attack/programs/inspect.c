// Tries to inspect other processes: `inspect PID...` with process ids of the host.
#include "attack.h"
#include <sys/ptrace.h>
#include <sys/uio.h>

static void inspect(const char *target, int process)
{
    char attempt[80], byte;
    struct iovec local = {&byte, 1}, remote = {&errno, 1};
#define TRY(name, call)                                    \
    do {                                                   \
        snprintf(attempt, sizeof attempt, "%s %s", name, target);  \
        answer(attempt, call);                                \
    } while (0)
    TRY("attach to", CALL(ptrace, PTRACE_ATTACH, process, 0, 0));
    TRY("seize", CALL(ptrace, PTRACE_SEIZE, process, 0, 0));
    TRY("read memory of", CALL(process_vm_readv, process, &local, 1, &remote, 1, 0));
    TRY("write memory of", CALL(process_vm_writev, process, &local, 1, &remote, 1, 0));
    TRY("compare with", CALL(kcmp, getpid(), process, 0, 1, 1));
    int descriptor = CALL(pidfd_open, process, 0);
    TRY("take a descriptor of", CALL(pidfd_getfd, descriptor, 0, 0));
    TRY("advise memory of", CALL(process_madvise, descriptor, &remote, 1, MADV_COLD, 0));
}

int main(int count, char **arguments)
{
    inspect("process 1", 1);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    inspect("a child", child);
    kill(child, SIGKILL);
    answer("be traced", CALL(ptrace, PTRACE_TRACEME, 0, 0, 0));
    for (int index = 1; index < count; index++) {
        int process = atoi(arguments[index]);
        char attempt[80];
        snprintf(attempt, sizeof attempt, "signal %s", arguments[index]);
        answer(attempt, kill(process, 0));
        snprintf(attempt, sizeof attempt, "pidfd of %s", arguments[index]);
        answer(attempt, CALL(pidfd_open, process, 0));
    }
    return 0;
}
