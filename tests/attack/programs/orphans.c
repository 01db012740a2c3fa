// Leaves 10,000 orphans to process 1, and then as many zombies as the limit allows.
#include "attack.h"

static pid_t patient_fork(void)
{
    // A process limit may count zombies, as long as process 1 reaps them.
    for (int attempt = 0; attempt < 20000; attempt++) {
        pid_t child = fork();
        if (child >= 0)
            return child;
        usleep(1000);
    }
    die("fork: process 1 does not reap");
    return -1;
}

int main(void)
{
    for (int orphan = 0; orphan < 10000; orphan++) {
        pid_t parent = patient_fork();
        if (parent == 0) {
            patient_fork();
            _exit(0);
        }
        waitpid(parent, NULL, 0);
    }
    int zombies = 0;
    for (pid_t child = fork(); child >= 0 && zombies < 2000; child = fork()) {
        if (child == 0)
            _exit(0);
        zombies++;
    }
    printf("10000 orphans, %d zombies\n", zombies);
    return 0;
}
