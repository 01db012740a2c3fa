// A process that forks itself anew every millisecond and lets its predecessor die, to outrun whoever kills what it has listed. Exits with 0 once that
// has gone on for some generations.
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
