// Leaves ten thousand orphans to process 1, and at the end as many zombies as it may have.
#include "attack.h"

static pid_t patient_fork(void)
{
    // A process limit that counts the dead who wait to be reaped is no fault, as long as they are reaped.
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
