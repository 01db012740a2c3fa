// Tries to create namespaces: with its own user namespace, a command could undo read-only mounts.
#include "attack.h"
#include <linux/sched.h>

static void unshares(const char *attempt, unsigned long flags)
{
    answer(attempt, CALL(unshare, flags));
}

static void clones(const char *attempt, unsigned long flags)
{
    long child = CALL(clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(0);
    answer(attempt, child);
    if (child > 0)
        waitpid(child, NULL, 0);
}

int main(void)
{
    static const struct {
        const char *name;
        unsigned long flag;
    } kinds[] = {
        {"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS},      {"process", CLONE_NEWPID}, {"network", CLONE_NEWNET},
        {"ipc", CLONE_NEWIPC},   {"cgroup", CLONE_NEWCGROUP}, {"host name", CLONE_NEWUTS},
    };
    char attempt[80];
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        unsigned long flag = kinds[kind].flag;
        snprintf(attempt, sizeof attempt, "unshare %s", kinds[kind].name);
        unshares(attempt, flag);
        snprintf(attempt, sizeof attempt, "unshare %s, more bits", kinds[kind].name);
        unshares(attempt, flag | 0xdead00000000);
        snprintf(attempt, sizeof attempt, "clone %s", kinds[kind].name);
        clones(attempt, flag);
        snprintf(attempt, sizeof attempt, "clone %s, more bits", kinds[kind].name);
        clones(attempt, flag | 0xdead00000000);
    }

    unshares("unshare user and mount", CLONE_NEWUSER | CLONE_NEWNS);
    unshares("unshare time", CLONE_NEWTIME);
    unshares("unshare files", CLONE_FILES);
    clones("clone alone", 0);

    struct clone_args arguments = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    long child = CALL(clone3, &arguments, sizeof arguments);
    if (child == 0)
        _exit(0);
    answer("clone3 user", child);
    arguments.flags = 0;
    child = CALL(clone3, &arguments, sizeof arguments);
    if (child == 0)
        _exit(0);
    answer("clone3 alone", child);
    return 0;
}
