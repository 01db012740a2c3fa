// Does to its standard output, a pipe, what would confuse a careless reader at the other end.
#include "attack.h"
#include <sys/ioctl.h>

int main(void)
{
    static char block[1 << 16];
    memset(block, 'a', sizeof block);
    signal(SIGIO, SIG_IGN);
    fcntl(1, F_SETFL, O_NONBLOCK);
    fcntl(1, F_SETPIPE_SZ, 4096);
    fcntl(1, F_SETOWN, getpid());
    fcntl(1, F_SETFL, O_NONBLOCK | O_ASYNC);
    fcntl(1, F_SETFL, O_NONBLOCK | O_DIRECT); // packet mode
    ioctl(1, FIONBIO, &(int){1});

    // Opens both ends again: reads the daemon's data, and writes through a second descriptor.
    int reader = open("/proc/self/fd/1", O_RDONLY | O_NONBLOCK);
    int writer = open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK);
    size_t written = 0;
    while (written < 8 << 20) {
        ssize_t result = write(1, block, sizeof block);
        if (result > 0)
            written += result;
        else if (errno != EAGAIN)
            die("write");
        if (reader >= 0 && read(reader, block, 100) > 0)
            memset(block, 'a', sizeof block);
    }
    fcntl(1, F_SETPIPE_SZ, 1 << 20);
    fcntl(1, F_SETFL, 0);
    if (reader >= 0)
        close(reader); // stops stealing the daemon's data
    if (writer >= 0 && write(writer, "by another way\n", 15) < 0)
        die("another way");
    const char *end = "the end\n";
    return write(1, end, strlen(end)) == (ssize_t)strlen(end) ? 0 : 1;
}
