// Parts of the kernel that commands hardly need: protocols, socket options, line disciplines, asynchronous I/O contexts,
// merged pages, and the priority of the init.
#include "attack.h"
#include <linux/aio_abi.h>
#include <linux/close_range.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>

#ifndef SYS_memfd_secret
#define SYS_memfd_secret 447
#endif
// The kernel reads 32 bits of these arguments. A filter that compares 64 bits could be bypassed.
#define MORE_BITS 0x5a00000000
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68

static int is_allowed(int family, int type, int protocol)
{
    if (type == SOCK_STREAM)
        return protocol == 0 || protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
    return type == SOCK_DGRAM &&
           (protocol == 0 || protocol == IPPROTO_UDP || protocol == (family == AF_INET ? IPPROTO_ICMP : IPPROTO_ICMPV6));
}

// Prints the error of all protocols that are not allowed, or the first protocol with another error.
static void other_protocols(const char *attempt, long flags, long bits)
{
    int first = 0;
    for (int family = AF_INET; family <= AF_INET6; family += AF_INET6 - AF_INET)
        for (int type = 1; type <= 15; type++)
            for (int protocol = -1; protocol < 300; protocol++) {
                int pair[2];
                if (type == SOCK_RAW || is_allowed(family, type, protocol))
                    continue;
                long alone = CALL(socket, bits | family, bits | flags | type, bits | (unsigned)protocol);
                int error = alone < 0 ? errno : 0;
                long paired = CALL(socketpair, bits | family, bits | flags | type, bits | (unsigned)protocol, pair);
                if (paired >= 0)
                    error = 0;
                first = first ? first : error;
                if (error == 0 || error != first || errno != first) {
                    printf("%s: family %d type %d protocol %d\n", attempt, family, type, protocol);
                    return;
                }
            }
    errno = first;
    answer(attempt, -1);
}

static void sockets(void)
{
    other_protocols("other protocols", 0, 0);
    other_protocols("other protocols, with flags", SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    other_protocols("other protocols, more bits", 0, MORE_BITS);
    answer("raw", CALL(socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_UDP));
    answer("raw IPv6", CALL(socket, AF_INET6, SOCK_RAW, IPPROTO_TCP));
    int tcp = CALL(socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int udp = CALL(socket, AF_INET6, SOCK_DGRAM | SOCK_NONBLOCK, IPPROTO_UDP);
    answer("TCP", tcp);
    answer("UDP", udp);
    answer("TCP over IPv6", CALL(socket, AF_INET6, SOCK_STREAM, IPPROTO_TCP));
    answer("UDP, more bits", CALL(socket, MORE_BITS | AF_INET, MORE_BITS | SOCK_DGRAM, MORE_BITS | IPPROTO_UDP));
    int multipath = CALL(socket, AF_INET6, SOCK_STREAM, IPPROTO_MPTCP);
    answer("MPTCP", multipath);
    answer("listen with MPTCP", listen(multipath, 1));
    answer("ping", CALL(socket, AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
    answer("ping IPv6", CALL(socket, AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6));
    answer("TCP_ULP", setsockopt(tcp, IPPROTO_TCP, TCP_ULP, "tls", 4));
    answer("TCP_ULP, more bits", CALL(setsockopt, tcp, MORE_BITS | IPPROTO_TCP, MORE_BITS | TCP_ULP, "tls", 4));
    answer("TCP_ULP of MPTCP", setsockopt(multipath, IPPROTO_TCP, TCP_ULP, "tls", 4));
    for (int kind = 1; kind < 8; kind++) {
        char attempt[64];
        snprintf(attempt, sizeof attempt, "UDP_ENCAP %d", kind);
        answer(attempt, setsockopt(udp, IPPROTO_UDP, UDP_ENCAP, &kind, sizeof kind));
        snprintf(attempt, sizeof attempt, "UDP_ENCAP %d as UDP-Lite", kind);
        answer(attempt, setsockopt(udp, IPPROTO_UDPLITE, UDP_ENCAP, &kind, sizeof kind));
    }
    int on = 1;
    answer("UDP_ENCAP, more bits", CALL(setsockopt, udp, MORE_BITS | IPPROTO_UDP, MORE_BITS | UDP_ENCAP, &on, sizeof on));
    answer("TCP_NODELAY", setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    answer("UDP_GRO", setsockopt(udp, IPPROTO_UDP, UDP_GRO, &on, sizeof on));
}

static void asynchronous(void)
{
    aio_context_t context = 0;
    struct io_event event;
    struct iocb *none = NULL;
    answer("io_setup", CALL(io_setup, 1, &context));
    answer("io_submit", CALL(io_submit, context, 0, &none));
    answer("io_getevents", CALL(io_getevents, context, 0, 1, &event, NULL));
    answer("io_pgetevents", syscall(333, context, 0, 1, &event, NULL, NULL));
    answer("io_pgetevents_time64", syscall(416, context, 0, 1, &event, NULL, NULL));
    answer("io_cancel", CALL(io_cancel, context, NULL, &event));
    answer("io_destroy", CALL(io_destroy, context));
    answer("memfd_secret", CALL(memfd_secret, 0));
}

static void terminals(void)
{
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    int slave = -1;
    if (ioctl(master, TIOCSPTLCK, &(int){0}) == 0)
        slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
    int both[] = {master, slave};
    for (int end = 0; end < 2; end++)
        for (int discipline = 0; discipline < 32; discipline += 27) {
            char attempt[64];
            snprintf(attempt, sizeof attempt, "discipline %d on %s", discipline, end ? "slave" : "master");
            answer(attempt, CALL(ioctl, both[end], TIOCSETD, &discipline));
            strcat(attempt, ", more bits");
            answer(attempt, CALL(ioctl, both[end], MORE_BITS | TIOCSETD, &discipline));
        }
}

static void pages(void)
{
    long size = 4096;
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec range = {page, size};
    int self = CALL(pidfd_open, getpid(), 0);
    answer("merge all", prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0));
    answer("merge all, more bits", CALL(prctl, MORE_BITS | PR_SET_MEMORY_MERGE, 1, 0, 0, 0));
    answer("merge a page", madvise(page, size, MADV_MERGEABLE));
    answer("merge a page, more bits", CALL(madvise, page, size, MORE_BITS | MADV_MERGEABLE));
    answer("merge a page by process_madvise", CALL(process_madvise, self, &range, 1, MADV_MERGEABLE, 0));
    answer("drop a page", madvise(page, size, MADV_DONTNEED));
}

#define IDLE (3 << 13)

static void priorities(void)
{
    int before = getpriority(PRIO_PROCESS, 1);
    answer("priority of init", CALL(setpriority, PRIO_PROCESS, 1, 19));
    answer("priority of init, more bits", CALL(setpriority, MORE_BITS | PRIO_PROCESS, MORE_BITS | 1, 19));
    answer("priority of init's group", CALL(setpriority, PRIO_PGRP, 1, 19));
    answer("priority of the user", CALL(setpriority, PRIO_USER, 0, 19));
    answer("priority of the user by number", CALL(setpriority, PRIO_USER, getuid(), 19));
    answer("priority of the user, more bits", CALL(setpriority, MORE_BITS | PRIO_USER, MORE_BITS, 19));
    answer("i/o priority of init", CALL(ioprio_set, 1, 1, IDLE));
    answer("i/o priority of init, more bits", CALL(ioprio_set, MORE_BITS | 1, MORE_BITS | 1, IDLE));
    answer("i/o priority of init's group", CALL(ioprio_set, 2, 1, IDLE));
    answer("i/o priority of the user", CALL(ioprio_set, 3, 0, IDLE));
    answer("i/o priority of the user by number", CALL(ioprio_set, 3, getuid(), IDLE));
    answer("group of init", CALL(setpgid, 0, 1));
    answer("group of init, more bits", CALL(setpgid, 0, MORE_BITS | 1));
    answer("init is as it was", getpriority(PRIO_PROCESS, 1) == before ? 0 : -1);
    answer("own priority", CALL(setpriority, PRIO_PROCESS, 0, 19));
    answer("own group's priority", CALL(setpriority, PRIO_PGRP, 0, 19));
    answer("own i/o priority", CALL(ioprio_set, 1, 0, IDLE));
}

// The daemon counts the open files of a run per process, so threads must share one descriptor table.
static void descriptor_tables(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    long thread = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_SYSVSEM | CLONE_THREAD;
    answer("thread with descriptors of its own", CALL(clone, thread, stack + sizeof stack));
    answer("thread with descriptors of its own, more bits", CALL(clone, MORE_BITS | thread, stack + sizeof stack));
    answer("close_range", CALL(close_range, 1000, 1001, 0));
    answer("close_range with a new table", CALL(close_range, 1000, 1001, CLOSE_RANGE_UNSHARE));
    answer("close_range with a new table, more bits", CALL(close_range, 1000, 1001, MORE_BITS | CLOSE_RANGE_UNSHARE));
    answer("close_range with a new table, at exec", CALL(close_range, 1000, 1001, CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC));
}

int main(void)
{
    sockets();
    descriptor_tables();
    asynchronous();
    terminals();
    pages();
    priorities();
    return 0;
}
