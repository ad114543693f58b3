// A file in memory goes to another process in a message: both store there, and each waits for the other without a call.
//#oracle: no: waits for another process
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
enum { ROUNDS = 5, SIZE = 1 << 20 };
struct message {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec piece;
    struct msghdr header;
};
static struct msghdr *empty(struct message *m) {
    memset(m, 0, sizeof *m);
    m->piece = (struct iovec){&m->byte, 1};
    m->header = (struct msghdr){.msg_iov = &m->piece, .msg_iovlen = 1};
    m->header.msg_control = m->control;
    m->header.msg_controllen = sizeof m->control;
    return &m->header;
}
static void hand_over(int socket, int fd) {
    struct message m;
    struct cmsghdr *rights = CMSG_FIRSTHDR(empty(&m));
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    CHECK(sendmsg(socket, &m.header, 0) == 1);
}
static volatile unsigned *shared(int fd) {
    void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    return at;
}
static void child(int socket) {
    struct message m;
    int fd;
    CHECK(recvmsg(socket, empty(&m), 0) == 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m.header)), sizeof fd);
    volatile unsigned *both = shared(fd);
    for (int i = 0; i < ROUNDS; i++) {
        while (!both[0]) ;
        both[1] += 3 * both[0];
        both[0] = 0;
    }
    _exit(0);
}
int main(void) {
    int sockets[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    // It is made when the child is there already.
    pid_t pid = fork();
    if (pid == 0) child(sockets[1]);
    int fd = memfd_create("both", 0);
    CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0);
    volatile unsigned *both = shared(fd);
    hand_over(sockets[0], fd);
    for (int i = 1; i <= ROUNDS; i++) {
        both[0] = i;
        while (both[0]) ;
        printf("%u\n", both[1]);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}
