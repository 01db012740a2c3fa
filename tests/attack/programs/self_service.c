// Settings that a process may request for itself, and for other processes, whose ids are the arguments.
#include "attack.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static void others(const char *number)
{
    pid_t pid = atoi(number);
    char attempt[64];
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    struct rlimit none = {0, 0};
    struct sched_param idle = {0};
#define TRY(name, result) (snprintf(attempt, sizeof attempt, name " of %s", number), answer(attempt, result))
    TRY("limits", CALL(prlimit64, pid, RLIMIT_NOFILE, &none, NULL));
    TRY("CPUs", CALL(sched_setaffinity, pid, sizeof all, &all));
    TRY("priority", CALL(setpriority, PRIO_PROCESS, pid, 19));
    TRY("class", CALL(sched_setscheduler, pid, 5 /* SCHED_IDLE */, &idle));
    TRY("priority of input and output", CALL(ioprio_set, 1, pid, 3 << 13));
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        others(argv[i]);

    // The classic escape from a chroot needs a descriptor of a directory outside, and chroot(2).
    mkdir("/tmp/inside", 0755);
    int root = open("/", O_PATH | O_DIRECTORY);
    answer("chroot", CALL(chroot, "/tmp/inside"));
    answer("fchdir", CALL(fchdir, root));
    answer("outside", access("../../../../../../proc/1/root/root", F_OK));

    answer("no randomization", CALL(personality, 0x0040000));
    answer("executable data", CALL(personality, 0x0400000));
    answer("plain Linux", CALL(personality, 0) >= 0 ? 0 : -1);

    answer("dumpable", prctl(PR_SET_DUMPABLE, 1));
    answer("tracer", prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY));
    answer("subreaper", prctl(PR_SET_CHILD_SUBREAPER, 1));
    answer("death signal", prctl(PR_SET_PDEATHSIG, SIGTERM));
#ifdef __x86_64__
    unsigned long base;
    answer("base of a segment", CALL(arch_prctl, 0x1004 /* ARCH_GET_GS */, &base));
    answer("segment in the kernel", CALL(arch_prctl, 0x1001 /* ARCH_SET_GS */, 0xffffffff80000000UL));
#endif
    answer("keep capabilities", prctl(PR_SET_KEEPCAPS, 1));
    answer("ambient capability", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0));
    answer("new privileges", prctl(PR_SET_NO_NEW_PRIVS, 0));

    // A filter that allows everything weakens nothing: the strictest filter counts.
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    answer("own filter", CALL(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
    answer("mount behind it", CALL(mount, "none", "/tmp", "tmpfs", 0, NULL));
    long listener = CALL(seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    answer("own listener", listener >= 0 ? 0 : -1);
    answer("mount behind the listener", CALL(mount, "none", "/tmp", "tmpfs", 0, NULL));
    answer("core files", getrlimit(RLIMIT_CORE, &(struct rlimit){0}));
    struct rlimit core;
    getrlimit(RLIMIT_CORE, &core);
    answer("no core handler", core.rlim_max <= 1 ? 0 : -1);
    return 0;
}
