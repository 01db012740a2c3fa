// Tries to make namespaces: a user namespace of its own would let a command take read-only mounts apart.
#include "attack.h"
#include <linux/sched.h>

static void unshares(const char *what, unsigned long flags)
{
    answer(what, CALL(unshare, flags));
}

static void clones(const char *what, unsigned long flags)
{
    long child = CALL(clone, flags | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(0);
    answer(what, child);
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
    char what[80];
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        unsigned long flag = kinds[kind].flag;
        snprintf(what, sizeof what, "unshare %s", kinds[kind].name);
        unshares(what, flag);
        snprintf(what, sizeof what, "unshare %s, more bits", kinds[kind].name);
        unshares(what, flag | 0xdead00000000);
        snprintf(what, sizeof what, "clone %s", kinds[kind].name);
        clones(what, flag);
        snprintf(what, sizeof what, "clone %s, more bits", kinds[kind].name);
        clones(what, flag | 0xdead00000000);
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
