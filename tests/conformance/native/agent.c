/* Calls functions of a shared library for another process, so that the tests of this machine reach
 * a library of another architecture: `agent LIBRARY SOCKET`, under an emulator.
 *
 * Whoever connects gets the address of an arena and sends messages, each three 64-bit words:
 *
 *     WRITE address size   bytes follow; they go to the address
 *     READ  address size   answered by the bytes there
 *     CALL  calls arguments   a name of NAME bytes and calls * arguments words follow; the function
 *                          is called that many times at once, each time in a thread of its own but
 *                          the first, and answered by as many words
 *
 * Besides the functions of the library there are get_mode and set_mode, of the thread that serves
 * the connection: FPCR or MXCSR. The end of the standard input ends the program; it then says how
 * many calls it made. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WRITE 1
#define READ 2
#define CALL 3
#define NAME 48
#define MOST_CALLS 16
#define MOST_ARGUMENTS 7
#define ARENA ((size_t)1 << 28)

typedef uint64_t (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

struct call {
    function run;
    uint64_t arguments[MOST_ARGUMENTS];
    uint64_t result;
    pthread_t thread;
};

static void *library;
static long long made;

static uint64_t get_mode(void)
{
#if defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
#else
    uint32_t mode;
    __asm__ volatile("stmxcsr %0" : "=m"(mode));
    return mode & 0xFFC0; /* Without the flags of what has happened. */
#endif
}

static uint64_t set_mode(uint64_t mode)
{
#if defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
    const uint32_t word = (uint32_t)mode;
    __asm__ volatile("ldmxcsr %0" : : "m"(word));
#endif
    return 0;
}

static function find(const char *name)
{
    void *found = dlsym(library, name);
    if (strcmp(name, "get_mode") == 0)
        return (function)(void (*)(void))get_mode;
    if (strcmp(name, "set_mode") == 0)
        return (function)(void (*)(void))set_mode;
    if (!found) {
        fprintf(stderr, "agent: the library has no %s\n", name);
        exit(1);
    }
    return (function)found;
}

/* 0 if whoever had connected is gone. */
static int transfer(int connection, void *memory, size_t size, int receive)
{
    char *at = memory;
    while (size > 0) {
        const ssize_t done = receive ? read(connection, at, size) : write(connection, at, size);
        if (done <= 0)
            return 0;
        at += done;
        size -= (size_t)done;
    }
    return 1;
}

static void *run(void *argument)
{
    struct call *call = argument;
    const uint64_t *a = call->arguments;
    call->result = call->run(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    return 0;
}

static int serve_calls(int connection, uint64_t count, uint64_t arguments)
{
    struct call calls[MOST_CALLS];
    char name[NAME];
    uint64_t i;
    if (count < 1 || count > MOST_CALLS || arguments > MOST_ARGUMENTS) {
        fprintf(stderr, "agent: a call that it cannot make\n");
        exit(1);
    }
    memset(calls, 0, sizeof calls);
    if (!transfer(connection, name, NAME, 1))
        return 0;
    name[NAME - 1] = 0;
    for (i = 0; i < count; ++i) {
        calls[i].run = find(name);
        if (!transfer(connection, calls[i].arguments, arguments * sizeof(uint64_t), 1))
            return 0;
    }
    for (i = 1; i < count; ++i)
        if (pthread_create(&calls[i].thread, 0, run, &calls[i]))
            abort();
    run(&calls[0]);
    for (i = 1; i < count; ++i)
        pthread_join(calls[i].thread, 0);
    __atomic_fetch_add(&made, (long long)count, __ATOMIC_RELAXED);
    for (i = 0; i < count; ++i)
        if (!transfer(connection, &calls[i].result, sizeof calls[i].result, 0))
            return 0;
    return 1;
}

static int serve_message(int connection)
{
    uint64_t message[3];
    if (!transfer(connection, message, sizeof message, 1))
        return 0;
    if (message[0] == CALL)
        return serve_calls(connection, message[1], message[2]);
    return transfer(connection, (void *)(uintptr_t)message[1], message[2], message[0] == WRITE);
}

static void *serve(void *argument)
{
    const int connection = (int)(intptr_t)argument;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *arena = mmap(0, ARENA, PROT_READ | PROT_WRITE, flags, -1, 0);
    uint64_t place[2] = {(uint64_t)(uintptr_t)arena, ARENA};
    if (arena == MAP_FAILED)
        abort();
    if (transfer(connection, place, sizeof place, 0))
        while (serve_message(connection)) {
        }
    close(connection);
    munmap(arena, ARENA);
    return 0;
}

static void *listen_on(void *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) {
        perror("agent");
        exit(1);
    }
    puts("ready");
    fflush(stdout);
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        const int connection = accept(listener, 0, 0);
        pthread_t thread;
        if (connection < 0 || pthread_create(&thread, 0, serve, (void *)(intptr_t)connection))
            abort();
        pthread_detach(thread);
    }
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    char byte;
    if (argc != 3)
        return 2;
    library = dlopen(argv[1], RTLD_NOW);
    if (!library) {
        fprintf(stderr, "agent: %s\n", dlerror());
        return 1;
    }
    if (pthread_create(&thread, 0, listen_on, argv[2]))
        abort();
    while (read(0, &byte, 1) > 0) {
    }
    printf("%lld\n", __atomic_load_n(&made, __ATOMIC_RELAXED));
    return 0;
}
