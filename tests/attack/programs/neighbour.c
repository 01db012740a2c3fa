// Attacks a process in the same namespaces: neighbour PROCESS PORT SOCKET. Other programs listen at PORT of 127.0.0.1, at
// SOCKET and at the abstract socket `jig-test-PORT`.
#include "attack.h"
#include <arpa/inet.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <sys/un.h>

static const char *const FILES[] = {"environ", "mem", "maps", "fd", "root", "cwd", "exe", "auxv", "io", "stack", "syscall"};

int main(int count, char **arguments)
{
    char path[128], byte[8];
    if (count != 4)
        return 64;
    pid_t process = atoi(arguments[1]);
    answer("signal", kill(process, 0));
    answer("end", kill(process, SIGTERM));
    answer("end everybody", kill(-1, SIGCONT));
    answer("signal its group", kill(-process, 0));
    answer("signal its thread", CALL(tgkill, process, process, 0));
    answer("queue a signal", sigqueue(process, SIGUSR1, (union sigval){.sival_int = SIGKILL}));

    // On output of a pipe or a change in a directory, the kernel signals the process that the owner names.
    int ends[2], directory = open(".", O_RDONLY | O_DIRECTORY);
    answer("name it for a pipe", pipe(ends) ? -1 : fcntl(ends[0], F_SETOWN, process));
    fcntl(ends[0], F_SETSIG, SIGKILL);
    fcntl(ends[0], F_SETFL, O_ASYNC | O_NONBLOCK);
    answer("have it signalled by a pipe", write(ends[1], byte, 1) == 1 ? 0 : -1);
    answer("name it for a directory", fcntl(directory, F_SETOWN, process));
    fcntl(directory, F_SETSIG, SIGKILL);
    fcntl(directory, F_NOTIFY, DN_CREATE | DN_DELETE);
    answer("have it signalled by a directory", close(open("made", O_CREAT | O_WRONLY, 0600)) ? -1 : unlink("made"));
    int pidfd = CALL(pidfd_open, process, 0);
    answer("signal by pidfd", CALL(pidfd_send_signal, pidfd, SIGKILL, NULL, 0));
    answer("take a descriptor", CALL(pidfd_getfd, pidfd, 1, 0));
    for (unsigned file = 0; file < sizeof FILES / sizeof *FILES; file++) {
        snprintf(path, sizeof path, "/proc/%d/%s", process, FILES[file]);
        int opened = open(path, O_RDONLY);
        char attempt[64];
        snprintf(attempt, sizeof attempt, "open %s", FILES[file]);
        answer(attempt, opened < 0 ? -1 : read(opened, byte, sizeof byte) < 0 && errno != EISDIR ? -1 : 0);
    }
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", process);
    answer("write oom_score_adj", open(path, O_WRONLY));
    answer("trace", ptrace(PTRACE_SEIZE, process, 0, 0));
    struct iovec local = {byte, sizeof byte}, remote = {(void *)main, sizeof byte};
    answer("read memory", process_vm_readv(process, &local, 1, &remote, 1, 0));
    struct rlimit limit;
    answer("read its limits", CALL(prlimit64, process, RLIMIT_NOFILE, NULL, &limit));
    unsigned long mask = 1;
    answer("pin", CALL(sched_setaffinity, process, sizeof mask, &mask));
    answer("schedule", sched_setscheduler(process, SCHED_IDLE, &(struct sched_param){0}));
    answer("set its priority", CALL(setpriority, 0, process, 19));
    answer("set its user's priority", CALL(setpriority, 2, 0, 19));
    answer("set its i/o priority", CALL(ioprio_set, 1, process, 3 << 13));
    answer("set its user's i/o priority", CALL(ioprio_set, 3, 0, 3 << 13));
    answer("own limits", CALL(prlimit64, 0, RLIMIT_NOFILE, NULL, &limit));
    answer("own priority", CALL(setpriority, 0, 0, 19));
    answer("own affinity", CALL(sched_setaffinity, 0, sizeof mask, &mask));

    struct sockaddr_in tcp = {
        .sin_family = AF_INET, .sin_port = htons(atoi(arguments[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int inet = socket(AF_INET, SOCK_STREAM, 0);
    answer("TCP socket", inet);
    answer("connect by TCP", connect(inet, (void *)&tcp, sizeof tcp));
    answer("UDP socket", socket(AF_INET, SOCK_DGRAM, 0));
    answer("IPv6 socket", socket(AF_INET6, SOCK_STREAM, 0));
    answer("netlink socket", socket(AF_NETLINK, SOCK_RAW, 0));
    answer("Unix socket", socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    strncpy(name.sun_path, arguments[3], sizeof name.sun_path - 1);
    struct sockaddr_un abstract = {.sun_family = AF_UNIX};
    int length = snprintf(abstract.sun_path + 1, 64, "jig-test-%s", arguments[2]);
    int pair[2] = {-1, -1};
    answer("datagram pair", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    answer("stream pair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    answer("connect one of a pair", connect(pair[0], (void *)&name, sizeof name));
    answer("connect one to an abstract socket",
           connect(pair[0], (void *)&abstract, offsetof(struct sockaddr_un, sun_path) + 1 + length));
    struct msghdr message = {.msg_name = &name, .msg_namelen = sizeof name, .msg_iov = &local, .msg_iovlen = 1};
    answer("send from one of a pair", sendmsg(pair[0], &message, 0));
    answer("bind one of a pair", bind(pair[0], (void *)&abstract, sizeof abstract));
    answer("shared memory", shmget(0x6a6967, 4096, IPC_CREAT | 0600));
    answer("message queue", mq_open("/jig", O_CREAT | O_RDWR, 0600, NULL));
    answer("core of another namespace", CALL(setns, pidfd, CLONE_NEWNS));
    return 0;
}
