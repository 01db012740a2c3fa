// Takes all inotify instances and watches that the kernel allows, prints their number, and holds
// them until the file `go` exists.
#include "attack.h"
#include <sys/inotify.h>

int main(void)
{
    int instances = 0, first = -1, fd;
    while ((fd = inotify_init1(0)) >= 0) {
        first = first < 0 ? fd : first;
        instances++;
    }
    printf("instances %d\n", instances);
    if (first >= 0 && inotify_add_watch(first, ".", IN_CREATE) < 0) {
        printf("no watch\n");
    }
    fflush(stdout);
    close(creat("taken", 0644));
    while (access("go", F_OK) != 0) {
        usleep(1000);
    }
    return 0;
}
