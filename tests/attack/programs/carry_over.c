// Leaves traces for the next run (`carry_over leave`), or looks for them (`carry_over find`).
#include "attack.h"
#include <arpa/inet.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/un.h>

#define KEY 0x6a696721
#define PORT 47110

static const char *const FILES[] = {"/tmp/left", "/dev/shm/left", "/home/agent/left"};

static int abstract_socket(struct sockaddr_un *address, socklen_t *length)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    strcpy(address->sun_path + 1, "left");
    *length = offsetof(struct sockaddr_un, sun_path) + 5;
    return socket(AF_UNIX, SOCK_STREAM, 0);
}

static void leave(void)
{
    for (int file = 0; file < 3; file++)
        answer(FILES[file], open(FILES[file], O_CREAT | O_WRONLY, 0666));
    int memory = shmget(KEY, 4096, IPC_CREAT | 0666);
    answer("shared memory", memory);
    strcpy(shmat(memory, NULL, 0), "left");
    answer("semaphore", semget(KEY, 1, IPC_CREAT | 0666));
    answer("message queue", msgget(KEY, IPC_CREAT | 0666));
    answer("POSIX message queue", mq_open("/left", O_CREAT | O_RDWR, 0666, NULL));
    answer("keyring", CALL(add_key, "user", "left", "left", 4, -3));

    // A connection closed by its listener stays in TIME_WAIT for a minute.
    struct sockaddr_in local = {
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (void *)&local, sizeof local) || listen(server, 1))
        die("listen");
    if (connect(client, (void *)&local, sizeof local))
        die("connect");
    close(accept(server, NULL, NULL));
    close(client);
    struct sockaddr_un name;
    socklen_t length;
    int socket = abstract_socket(&name, &length);
    answer("abstract socket", bind(socket, (void *)&name, length) || listen(socket, 1) ? -1 : 0);
    if (fork() == 0) {
        setsid(); // outlives the command and keeps everything open
        for (;;)
            pause();
    }
}

static void find(void)
{
    for (int file = 0; file < 3; file++)
        answer(FILES[file], access(FILES[file], F_OK));
    answer("shared memory", shmget(KEY, 0, 0));
    answer("semaphore", semget(KEY, 0, 0));
    answer("message queue", msgget(KEY, 0));
    answer("POSIX message queue", mq_open("/left", O_RDWR));
    answer("keyring", CALL(request_key, "user", "left", NULL, -3));
    struct sockaddr_un name;
    socklen_t length;
    int end = abstract_socket(&name, &length);
    answer("abstract socket", connect(end, (void *)&name, length));
    struct sockaddr_in local = {
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    answer("listener", connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&local, sizeof local));
    answer("port is free", bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&local, sizeof local));
    answer("another process", kill(-1, 0));
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 64;
    if (!strcmp(arguments[1], "leave"))
        leave();
    else
        find();
    return 0;
}
