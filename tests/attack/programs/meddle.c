// Changes the directory `tree` until the file `stop` exists: entries become links and directories
// again, move to other parents, appear and disappear.
#include "attack.h"

int main(void)
{
    while (access("stop", F_OK) != 0) {
        // RENAME_EXCHANGE
        syscall(SYS_renameat2, AT_FDCWD, "tree/d", AT_FDCWD, "tree/link", 2);
        syscall(SYS_renameat2, AT_FDCWD, "tree/d/a", AT_FDCWD, "tree/d/f", 2);
        rename("tree/d/a/b", "tree/e/b");
        rename("tree/e", "tree/d/a/e");
        unlink("tree/e/b/f");
        rmdir("tree/e/b");
        mkdir("tree/e/new", 0755);
        close(open("tree/e/new/f", O_CREAT | O_WRONLY, 0644));
    }
    return 0;
}
