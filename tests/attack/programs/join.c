// Tries to enter namespaces: those of process 1, their parents, and its own.
#include "attack.h"

int main(void)
{
    static const char *const kinds[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"};
    char path[64], attempt[80];
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        snprintf(path, sizeof path, "/proc/1/ns/%s", kinds[kind]);
        snprintf(attempt, sizeof attempt, "open %s of process 1", kinds[kind]);
        answer(attempt, open(path, O_RDONLY));
        snprintf(path, sizeof path, "/proc/self/ns/%s", kinds[kind]);
        snprintf(attempt, sizeof attempt, "enter own %s", kinds[kind]);
        answer(attempt, CALL(setns, open(path, O_RDONLY), 0));
    }
    int init = CALL(pidfd_open, 1, 0);
    answer("pidfd of process 1", init);
    answer("enter the mount namespace of process 1", CALL(setns, init, CLONE_NEWNS));
    answer("enter all of process 1", CALL(setns, init, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID));

    // NS_GET_USERNS returns the namespace that owns ours, NS_GET_PARENT the parent of ours.
    int own = open("/proc/self/ns/net", O_RDONLY);
    answer("owner of the network namespace", CALL(ioctl, own, 0xb701, 0));
    own = open("/proc/self/ns/user", O_RDONLY);
    answer("parent of the user namespace", CALL(ioctl, own, 0xb702, 0));
    own = open("/proc/self/ns/pid", O_RDONLY);
    answer("parent of the process namespace", CALL(ioctl, own, 0xb702, 0));
    return 0;
}
