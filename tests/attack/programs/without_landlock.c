// A kernel without Landlock: without_landlock PROGRAM ARGUMENT... The test runs it on the host.
#include "attack.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

int main(int count, char **arguments)
{
    struct sock_filter refuse[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof refuse / sizeof *refuse, refuse};
    if (count < 2)
        return 64;
    if (CALL(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
        die("seccomp");
    execv(arguments[1], arguments + 1);
    die(arguments[1]);
    return 99;
}
