// A host on which some system calls fail: inject RULE... -- PROGRAM ARGUMENT... A rule is CALL=ERRNO, or
// CALL:N:VALUE=ERRNO for calls whose argument N has that value, or CALL:N:VALUE:MASK=ERRNO to compare only the bits of
// the mask. Numbers are written as in C. The test runs it on the host.
#include "attack.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static const struct {
    const char *name;
    int number;
} CALLS[] = {
    {"clone", SYS_clone},
    {"clone3", SYS_clone3},
    {"close_range", SYS_close_range},
    {"epoll_ctl", SYS_epoll_ctl},
    {"landlock_create_ruleset", SYS_landlock_create_ruleset},
    {"mount", SYS_mount},
    {"mount_setattr", SYS_mount_setattr},
    {"move_mount", SYS_move_mount},
    {"open_tree", SYS_open_tree},
    {"pivot_root", SYS_pivot_root},
    {"prctl", SYS_prctl},
    {"prlimit64", SYS_prlimit64},
    {"seccomp", SYS_seccomp},
    {"sethostname", SYS_sethostname},
    {"setns", SYS_setns},
    {"setresgid", SYS_setresgid},
    {"setresuid", SYS_setresuid},
    {"setsid", SYS_setsid},
    {"umount2", SYS_umount2},
    {"unshare", SYS_unshare},
};

static int number_of(const char *name)
{
    for (unsigned call = 0; call < sizeof CALLS / sizeof *CALLS; call++)
        if (!strcmp(CALLS[call].name, name))
            return CALLS[call].number;
    fprintf(stderr, "inject does not know %s\n", name);
    exit(64);
}

int main(int count, char **arguments)
{
    struct sock_filter filter[128];
    unsigned length = 0;
    int next = 1;
    for (; next < count && strcmp(arguments[next], "--"); next++) {
        char *error = strchr(arguments[next], '=');
        char *name = strtok(arguments[next], ":=");
        char *argument = error > name + strlen(name) ? strtok(NULL, ":=") : NULL;
        if (!error || length > 110)
            return 64;
        unsigned refuse = SECCOMP_RET_ERRNO | (strtoul(error + 1, NULL, 0) & 0xffff);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
        if (argument) {
            unsigned value = strtoul(strtok(NULL, ":="), NULL, 0);
            char *bits = strtok(NULL, ":=");
            unsigned mask = bits && bits < error + 1 ? strtoul(bits, NULL, 0) : ~0U;
            filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(name), 0, 4);
            filter[length++] = (struct sock_filter)BPF_STMT(
                BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + 8 * strtoul(argument, NULL, 0));
            filter[length++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask);
            filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
        } else {
            filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(name), 0, 1);
        }
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refuse);
    }

    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    if (next + 1 >= count)
        return 64;

    if (geteuid() != 0)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (CALL(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
        die("seccomp");
    execv(arguments[next + 1], arguments + next + 1);
    die(arguments[next + 1]);
    return 99;
}
