// Opens as many files as each process may, in as many processes as the argument says, and keeps them open.
#include "attack.h"
#include <sys/resource.h>

int main(int argc, char **argv)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int processes = argc > 1 ? atoi(argv[1]) : 1;
    for (int process = 1; process < processes; process++)
        if (fork() == 0)
            break;
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    if (errno != EMFILE)
        die("open");
    puts("full");
    fflush(stdout);
    pause();
}
