// All ways to execute another program, each in a child, and what the program sees of itself then.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../../corpus/programs/c/check.h"
extern char **environ;

static char self[4096], folder[4096], *name;
static char *seen[] = {"child", "report", "A", "", "last", 0};
static char *with[] = {"ONE=1", "EMPTY=", "TWO=2", 0};

// What the program can know of how it was executed.
static void report(int argc, char **argv) {
    char text[4096], comm[17] = "";
    ssize_t len = readlink("/proc/self/exe", text, sizeof text - 1);
    CHECK(len > 0);
    text[len] = 0;
    prctl(PR_GET_NAME, comm);
    printf("%s\n  comm %s\n", (char *)getauxval(AT_EXECFN), comm);
    printf("  exe %s\n ", text);
    for (int i = 0; i < argc; i++) printf(" [%s]", argv[i]);
    printf("\n ");
    for (char **e = environ; *e; e++) printf(" {%s}", *e);
    printf("\n  open");
    for (int fd = 0; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0) printf(" %d", fd);
    sigset_t mask;
    sigprocmask(SIG_BLOCK, 0, &mask);
    printf("\n  blocked");
    for (int s = 1; s < 65; s++)
        if (sigismember(&mask, s) == 1) printf(" %d", s);
    printf("\n  not default");
    for (int s = 1; s < 65; s++) {
        struct sigaction act;
        if (!sigaction(s, 0, &act) && act.sa_handler != SIG_DFL) printf(" %d", s);
    }
    printf("\n");
}

static int at_file(void) {
    int fd = open(self, O_PATH);
    CHECK(fd >= 0);
    return fd;
}

static int at_folder(void) {
    int fd = open(folder, O_DIRECTORY);
    CHECK(fd >= 0);
    return fd;
}

static void by_path(void) { execve(self, seen, with); }
static void relative(void) { CHECK(!chdir(folder)); execve(name, seen, with); }
static void strange(void) {
    char path[8200];
    sprintf(path, "%s/.//../%s/%s", folder, strrchr(folder, '/') + 1, name);
    execve(path, seen, with);
}
static void at_relative(void) { syscall(SYS_execveat, at_folder(), name, seen, with, 0); }
static void at_absolute(void) { syscall(SYS_execveat, 77, self, seen, with, 0); }
static void at_empty(void) { syscall(SYS_execveat, at_file(), "", seen, with, AT_EMPTY_PATH); }
static void at_empty_without(void) { syscall(SYS_execveat, at_file(), "", seen, with, 0); }
static void at_nothing(void) { syscall(SYS_execveat, 77, "", seen, with, AT_EMPTY_PATH); }
static void by_fexecve(void) { fexecve(at_file(), seen, with); }
static void by_proc_fd(void) {
    char path[64];
    sprintf(path, "/proc/self/fd/%d", at_file());
    execve(path, seen, with);
}
static void by_link(void) { execve("/proc/self/exe", seen, with); }
static void by_link_of_pid(void) {
    char path[64];
    sprintf(path, "/proc/%d/exe", getpid());
    // Not in what the program prints.
    int null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    close(null);
    execve(path, seen, with);
}
static void by_relative_link(void) { CHECK(!chdir("/proc/self")); execve("./exe", seen, with); }
static void of_open_link(void) { fexecve(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), seen, with); }
static void link_not_followed(void) {
    syscall(SYS_execveat, AT_FDCWD, "/proc/self/exe", seen, with, AT_SYMLINK_NOFOLLOW);
}
static void in_memory(void) {
    int to = memfd_create("copy", 0), from = open(self, O_RDONLY);
    char bytes[65536];
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;) CHECK(write(to, bytes, n) == n);
    close(from);
    char path[64];
    sprintf(path, "/proc/self/fd/%d", to);
    int again = open(path, O_RDONLY);
    close(to);
    fexecve(again, seen, with);
}
static void no_arguments(void) { execve(self, (char *[]){"", "report", 0}, 0); }
static void masked(void) {
    sigset_t mask;
    sigemptyset(&mask);
    for (int s = 1; s < 65; s++)
        if (s % 5 == 0 || s == SIGSEGV) sigaddset(&mask, s);
    sigprocmask(SIG_SETMASK, &mask, 0);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    execve(self, seen, with);
}
static void *execute(void *unused) { execve(self, seen, with); return unused; }
static void *wait_for_ever(void *unused) { for (;;) pause(); return unused; }
static void of_thread(void) {
    pthread_t thread;
    for (int i = 0; i < 3; i++) pthread_create(&thread, 0, wait_for_ever, 0);
    pthread_create(&thread, 0, execute, 0);
    wait_for_ever(0);
}
static void of_vfork(void) {
    fflush(stdout);
    int status;
    char *before = getenv("HOME"), **all = environ;
    for (int i = 0; i < 3; i++) {
        pid_t pid = vfork();
        if (!pid) { execve(self, seen, with); _exit(99); }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
        pid = vfork();
        if (!pid) { execve("/nonexistent", seen, with); _exit(errno); }
        CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == ENOENT);
    }
    CHECK(before == getenv("HOME") && all == environ);
    _exit(0);
}
static volatile int children;
static void child_ended(int signal) { children += signal == SIGCHLD; }
static void spawned(void) {
    fflush(stdout);
    signal(SIGCHLD, child_ended);
    pid_t pid;
    int status, ended = 0;
    sigset_t mask, empty;
    sigemptyset(&empty);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigprocmask(SIG_BLOCK, &mask, 0);
    for (int i = 0; i < 4; i++) {
        int given = children;
        CHECK(!posix_spawn(&pid, self, 0, 0, seen, with));
        // One each, and it is that of the child.
        while (children == given) sigsuspend(&empty);
        pid_t got = waitpid(-1, &status, __WALL);
        CHECK(got == pid && status == 0);
        ended++;
    }
    CHECK(posix_spawn(&pid, "/nonexistent/program", 0, 0, seen, with) == ENOENT);
    CHECK(waitpid(-1, &status, __WALL) == -1 && errno == ECHILD);
    printf("%d children, %d signals\n", ended, children);
    fflush(stdout);
    _exit(0);
}

// What is executed executes another: one program behind the one that has made the filter.
static void filtered(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    execve(self, (char *[]){"filtered", "by_path", 0}, with);
}

static char *made(const char *what, const char *text, mode_t mode) {
    static char path[8200];
    // Not beside the program: its folder may not be ours.
    sprintf(path, "/tmp/ways.%d.%s", getpid(), what);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    CHECK(!fchmod(fd, mode) && !close(fd));
    return path;
}
static void fails(char *path) {
    execve(path, seen, with);
    int error = errno;
    unlink(path);
    errno = error;
}
static void not_executable(void) { fails(made("plain", "#!/bin/sh\necho wrong\n", 0600)); }
static void no_format(void) { fails(made("text", "echo wrong\n", 0700)); }
static void empty_file(void) { fails(made("empty", "", 0700)); }
static void no_interpreter(void) { fails(made("orphan", "#!/nonexistent/interpreter\n", 0700)); }
static void through_file(void) {
    char path[8200];
    sprintf(path, "%s/below", self);
    execve(path, seen, with);
}
static void a_folder(void) { execve("/tmp", seen, with); }
// Nothing is there; the compiler does not know.
static void *volatile nowhere = (void *)1;
static void bad_path(void) { execve(nowhere, seen, with); }
static void bad_arguments(void) { execve(self, nowhere, with); }
static void bad_argument(void) { execve(self, (char *[]){"x", nowhere, 0}, with); }
static void bad_environment(void) { execve(self, seen, nowhere); }
static void long_path(void) {
    static char path[5000];
    memset(path, 'x', sizeof path - 1);
    execve(path, seen, with);
}
static void too_much(void) {
    static char big[1 << 18];
    memset(big, 'x', sizeof big - 1);
    execve(self, (char *[]){"x", big, 0}, with);
}

#define WAY(name) {#name, name}
static struct { const char *name; void (*go)(void); } ways[] = {
    WAY(by_path), WAY(relative), WAY(strange), WAY(at_relative), WAY(at_absolute), WAY(at_empty),
    WAY(at_empty_without), WAY(at_nothing), WAY(by_fexecve), WAY(by_proc_fd), WAY(by_link),
    WAY(by_link_of_pid), WAY(by_relative_link), WAY(of_open_link), WAY(link_not_followed),
    WAY(in_memory), WAY(filtered), WAY(no_arguments), WAY(masked), WAY(of_thread), WAY(of_vfork), WAY(spawned),
    WAY(not_executable), WAY(no_format), WAY(empty_file), WAY(no_interpreter), WAY(through_file),
    WAY(a_folder), WAY(bad_path), WAY(bad_arguments), WAY(bad_argument), WAY(bad_environment),
    WAY(long_path), WAY(too_much),
};

static void tick(int signal) { dprintf(1, "signal %d\n", signal); }

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "report")) { report(argc, argv); return 0; }
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(len > 0);
    strcpy(folder, self);
    name = strrchr(folder, '/') + 1;
    name[-1] = 0;
    if (argc > 1 && !strcmp(argv[1], "ticking")) {
        // For a recorder that takes its time.
        signal(SIGALRM, tick);
        setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 100000}}, 0);
        by_path();
    }
    // Whoever started us may block and ignore something.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    for (int s = 1; s < 65; s++) signal(s, SIG_DFL);
    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (argc > 1 && strcmp(argv[1], "all") && strcmp(argv[1], ways[i].name)) continue;
        printf("%s: ", ways[i].name);
        fflush(stdout);
        pid_t pid = fork();
        if (!pid) {
            ways[i].go();
            printf("error %d\n", errno);
            fflush(stdout);
            _exit(1);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        printf("status %d\n", status);
    }
    CHECK(waitpid(-1, 0, __WALL) == -1 && errno == ECHILD);
    return 0;
}
