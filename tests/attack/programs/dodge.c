// A process that forks every millisecond while its parent exits, to escape a kill by a list of processes. Exits with 0
// after 20 generations.
#include "attack.h"

int main(void)
{
    volatile unsigned *generation =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (fork() == 0) {
        close_range(0, 2, 0);
        for (;;) {
            if (fork() > 0)
                _exit(0);
            setsid();
            ++*generation;
            usleep(1000);
        }
    }
    while (*generation < 20)
        usleep(1000);
    puts("running");
    return 0;
}
