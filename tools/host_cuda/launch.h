/* Launches of kernels on the host: the fibers, their scheduler, and the functions of the library.
 *
 * Blocks run one after another. In a block each thread is a fiber, which runs until it waits for
 * others; so data races show as wrong results under some order of the fibers, and the order is
 * drawn from a seed, anew after every barrier of the block. When no fiber can go on, the launch
 * fails and says who waits where. Shared memory starts with noise and lies between guard bytes.
 *
 * Included once, after the kernels, by the file that tools/host_cuda.py writes; that file ends with
 * the table of entries. */
#ifndef MMAEMU_HOST_LAUNCH_H
#define MMAEMU_HOST_LAUNCH_H

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif !defined(__aarch64__)
#include <ucontext.h>
#endif

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace mmaemu_host
{

enum status {
    LAUNCH_OK = 0,
    LAUNCH_NO_ENTRY = 1,
    LAUNCH_BAD_PARAMETER = 2, /* Not the size of the kernel's parameter. */
    LAUNCH_BAD_SIZE = 3,
    LAUNCH_NO_MEMORY = 4,
    LAUNCH_FAILED = 5 /* The kernel did what CUDA leaves open. */
};

enum { MAX_THREADS = 1024, STACK_BYTES = 256 * 1024, GUARD_BYTES = 4096, WARP = 32 };
/* Dynamic shared memory of a block on the largest device, 227 KiB. */
enum { MAX_SHARED = 232448 };

/* One entry of the table at the end of the generated file. */
struct entry {
    const char *name;
    void (*run)(const void *parameter);
    size_t parameter_bytes;
};

/* ---- Switching from one stack to another ---- */

#if defined(__x86_64__)
typedef void *context;
extern "C" void mmaemu_host_switch(context *from, context to);
#if defined(__APPLE__)
#define MMAEMU_SYMBOL "_mmaemu_host_switch"
#else
#define MMAEMU_SYMBOL "mmaemu_host_switch"
#endif
/* Keeps what a function must keep (System V): six registers and the stack pointer. */
asm(".text\n" MMAEMU_SYMBOL ":\n"
    "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    "movq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\n"
    "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
    "ret\n");

static void prepare(context *fresh, unsigned char *stack_end, void (*body)())
{
    void **top = (void **)stack_end;
    *--top = nullptr; /* Makes the stack pointer odd by 8, as after a call. */
    *--top = (void *)body;
    for (int i = 0; i < 6; ++i)
        *--top = nullptr;
    *fresh = top;
}
#elif defined(__aarch64__)
typedef void *context;
extern "C" void mmaemu_host_switch(context *from, context to);
#if defined(__APPLE__)
#define MMAEMU_SYMBOL "_mmaemu_host_switch"
#else
#define MMAEMU_SYMBOL "mmaemu_host_switch"
#endif
asm(".text\n.balign 4\n" MMAEMU_SYMBOL ":\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\n stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
    "mov x9, sp\n str x9, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp, #0]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\n ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n"
    "ret\n");

static void prepare(context *fresh, unsigned char *stack_end, void (*body)())
{
    void **top = (void **)(stack_end - 160);
    memset(top, 0, 160);
    top[11] = (void *)body; /* x30, to which the switch returns. */
    *fresh = top;
}
#else
typedef ucontext_t context;
static void mmaemu_host_switch(context *from, context &to)
{
    swapcontext(from, &to);
}

static void prepare(context *fresh, unsigned char *stack_end, void (*body)())
{
    getcontext(fresh);
    fresh->uc_stack.ss_sp = stack_end - STACK_BYTES;
    fresh->uc_stack.ss_size = STACK_BYTES;
    fresh->uc_link = nullptr;
    makecontext(fresh, body, 0);
}
#endif

/* ---- The state of the one launch that runs ---- */

enum wait_kind { RUNNING, WAITS_FOR_BLOCK, WAITS_FOR_WARP, RETURNED };

struct fiber {
    context place;
    wait_kind state;
    site where;
    lane *pending; /* While it waits for its warp. */
};

struct launch {
    context scheduler;
    fiber fibers[MAX_THREADS];
    uint16_t order[MAX_THREADS];
    unsigned current;
    unsigned threads;
    unsigned arrived; /* At the barrier of the block. */
    unsigned live;
    block_operation operation;
    site where;
    int reduced;
    int result;
    uint64_t random; /* 0: the fibers' natural order. */
    const entry *kernel;
    const void *parameter;
    unsigned char *stacks;
    unsigned char *shared;
    size_t shared_bytes;
    int failed;
    char message[512];
};

static launch running;
static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void leave()
{
    fiber &self = running.fibers[running.current];
    mmaemu_host_switch(&self.place, running.scheduler);
}

void *shared_memory()
{
    return running.shared + GUARD_BYTES;
}

static void write_message(const char *format, va_list arguments)
{
    if (!running.failed)
        vsnprintf(running.message, sizeof running.message, format, arguments);
    running.failed = 1;
}

static void note_failure(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note_failure(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_message(format, arguments);
    va_end(arguments);
}

/* Ends the launch. The stacks are left as they are: device code has nothing to destroy. */
void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_message(format, arguments);
    va_end(arguments);
    for (;;)
        leave();
}

/* ---- Waiting ---- */

static void shuffle_order()
{
    if (running.random == 0)
        return;
    for (unsigned i = running.threads; i > 1; --i) {
        const unsigned j = (unsigned)(next_random(&running.random) % i);
        const uint16_t other = running.order[i - 1];
        running.order[i - 1] = running.order[j];
        running.order[j] = other;
    }
}

static int same_site(site x, site y)
{
    return x.line == y.line && strcmp(x.file, y.file) == 0;
}

static void release_block()
{
    running.result = running.operation == BLOCK_AND  ? running.reduced == (int)running.threads
                     : running.operation == BLOCK_OR ? running.reduced != 0
                                                     : running.reduced;
    running.arrived = 0;
    for (unsigned i = 0; i < running.threads; ++i)
        running.fibers[i].state = RUNNING;
    shuffle_order();
}

int block_wait(block_operation operation, int value, site where)
{
    fiber &self = running.fibers[running.current];
    if (running.arrived == 0) {
        running.operation = operation;
        running.where = where;
        running.reduced = 0;
    } else if (operation != running.operation || !same_site(where, running.where)) {
        fail("divergent barrier: thread %u is at %s:%d, others at %s:%d", running.current,
             where.file, where.line, running.where.file, running.where.line);
    }
    running.reduced += value != 0;
    running.arrived += 1;
    self.where = where;
    self.state = WAITS_FOR_BLOCK;
    if (running.arrived == running.threads)
        release_block();
    leave();
    return running.result;
}

static uint64_t reduce(warp_operation operation, uint64_t x, uint64_t y)
{
    switch (operation) {
    case WARP_REDUCE_OR:
        return x | y;
    case WARP_REDUCE_AND:
        return x & y;
    case WARP_REDUCE_MAX:
        return x > y ? x : y;
    case WARP_REDUCE_MIN:
        return x < y ? x : y;
    default:
        return (x + y) & 0xFFFFFFFFu;
    }
}

/* The lane from which lane `self` takes its value; its own where that lies outside its group. */
static int source_lane(int self, const lane &mine)
{
    const int first = self & ~(mine.width - 1);
    int other = self;
    if (mine.operation == WARP_SHUFFLE)
        other = first + (mine.argument & (mine.width - 1));
    else if (mine.operation == WARP_SHUFFLE_UP)
        other = self - mine.argument < first ? self : self - mine.argument;
    else if (mine.operation == WARP_SHUFFLE_DOWN)
        other = self + mine.argument >= first + mine.width ? self : self + mine.argument;
    else
        other = (self ^ mine.argument) >= first + mine.width ? self : self ^ mine.argument;
    return other & (WARP - 1);
}

static void shuffle_lanes(lane *const *lanes, uint32_t mask)
{
    uint64_t taken[WARP];
    for (int i = 0; i < WARP; ++i) {
        if (!(mask >> i & 1u))
            continue;
        const int other = source_lane(i, *lanes[i]);
        if (!(mask >> other & 1u))
            fail("shuffle at %s:%d: lane %d reads lane %d, which is not in mask 0x%08x",
                 lanes[i]->where.file, lanes[i]->where.line, i, other, mask);
        taken[i] = lanes[other]->value;
    }
    for (int i = 0; i < WARP; ++i)
        if (mask >> i & 1u)
            lanes[i]->value = taken[i];
}

/* All lanes of the mask are here: gives each its result. */
static void finish_warp(lane *const *lanes, uint32_t mask, const lane &any)
{
    uint64_t result = any.value;
    if (any.operation == WARP_BARRIER)
        return;
    if (any.operation == WARP_FUNCTION) {
        any.function(lanes);
        return;
    }
    if (any.operation >= WARP_SHUFFLE && any.operation <= WARP_SHUFFLE_XOR) {
        shuffle_lanes(lanes, mask);
        return;
    }
    if (any.operation == WARP_BALLOT) {
        result = 0;
        for (int i = 0; i < WARP; ++i)
            result |= mask >> i & 1u ? lanes[i]->value << i : 0u;
    } else {
        const int first = __builtin_ctz(mask);
        result = lanes[first]->value;
        for (int i = first + 1; i < WARP; ++i)
            if (mask >> i & 1u)
                result = reduce(any.operation, result, lanes[i]->value);
    }
    for (int i = 0; i < WARP; ++i)
        if (mask >> i & 1u)
            lanes[i]->value = result;
}

/* Whether every lane of the mask waits for this very operation. */
static int warp_is_complete(lane **lanes, const lane &mine)
{
    const unsigned base = running.current & ~(unsigned)(WARP - 1);
    for (unsigned i = 0; i < WARP; ++i) {
        if (!(mine.mask >> i & 1u))
            continue;
        if (base + i >= running.threads)
            fail("mask 0x%08x at %s:%d names lane %u, which the block does not have", mine.mask,
                 mine.where.file, mine.where.line, i);
        lanes[i] = running.fibers[base + i].pending;
        if (lanes[i] == nullptr)
            return 0;
        /* It may still wait for others, at an earlier place. */
        if (lanes[i]->mask != mine.mask)
            return 0;
        if (lanes[i]->operation != mine.operation || !same_site(lanes[i]->where, mine.where))
            fail("divergent warp: thread %u is at %s:%d, thread %u at %s:%d, both with mask 0x%08x",
                 running.current, mine.where.file, mine.where.line, base + i, lanes[i]->where.file,
                 lanes[i]->where.line, mine.mask);
    }
    return 1;
}

uint64_t warp_wait(const lane &mine)
{
    const unsigned base = running.current & ~(unsigned)(WARP - 1);
    fiber &self = running.fibers[running.current];
    lane *lanes[WARP] = {};
    lane own = mine;
    if (!(mine.mask >> (running.current - base) & 1u))
        fail("thread %u is not in its own mask 0x%08x at %s:%d", running.current, mine.mask,
             mine.where.file, mine.where.line);
    self.pending = &own;
    self.where = mine.where;
    if (warp_is_complete(lanes, mine)) {
        finish_warp(lanes, mine.mask, own);
        for (unsigned i = 0; i < WARP; ++i) {
            if (mine.mask >> i & 1u) {
                running.fibers[base + i].pending = nullptr;
                running.fibers[base + i].state = RUNNING;
            }
        }
        return own.value;
    }
    self.state = WAITS_FOR_WARP;
    leave();
    return own.value;
}

/* ---- Blocks ---- */

static void fiber_body()
{
    running.kernel->run(running.parameter);
    running.fibers[running.current].state = RETURNED;
    running.live -= 1;
    for (;;)
        leave();
}

static void start_fibers()
{
    for (unsigned i = 0; i < running.threads; ++i) {
        unsigned char *end = running.stacks + (size_t)(i + 1) * (STACK_BYTES + GUARD_BYTES);
        prepare(&running.fibers[i].place, end, fiber_body);
        running.fibers[i].state = RUNNING;
        running.fibers[i].pending = nullptr;
        running.order[i] = (uint16_t)i;
    }
    running.arrived = 0;
    running.live = running.threads;
    shuffle_order();
}

/* Says who waits where; called when no fiber can go on. */
static void report_deadlock()
{
    unsigned waiting[3] = {0, 0, 0};
    int first = -1;
    for (unsigned i = 0; i < running.threads; ++i) {
        const wait_kind state = running.fibers[i].state;
        if (state == RETURNED)
            waiting[0] += 1;
        else
            waiting[state == WAITS_FOR_BLOCK ? 1 : 2] += 1;
        if (state != RETURNED && first < 0)
            first = (int)i;
    }
    note_failure("deadlock: %u threads have returned, %u wait at a barrier of the block, %u for "
                 "their warp; thread %d waits at %s:%d",
                 waiting[0], waiting[1], waiting[2], first, running.fibers[first].where.file,
                 running.fibers[first].where.line);
}

static void run_fibers()
{
    while (running.live > 0) {
        int progress = 0;
        for (unsigned i = 0; i < running.threads; ++i) {
            const unsigned index = running.order[i];
            if (running.fibers[index].state != RUNNING)
                continue;
            progress = 1;
            running.current = index;
            threadIdx.x = index;
            mmaemu_host_switch(&running.scheduler, running.fibers[index].place);
            if (running.failed)
                return;
        }
        if (!progress) {
            report_deadlock();
            return;
        }
    }
}

#if defined(__linux__)
extern "C" unsigned char __start_mmaemu_shared[] __attribute__((weak, visibility("hidden")));
extern "C" unsigned char __stop_mmaemu_shared[] __attribute__((weak, visibility("hidden")));
#endif

static void fill_noise(unsigned char *begin, unsigned char *end, uint64_t seed)
{
    for (; begin < end; ++begin)
        *begin = (unsigned char)(next_random(&seed) | 1u);
}

static unsigned char guard_byte(size_t index)
{
    return (unsigned char)(0xA5u ^ index);
}

/* The guard bytes on both sides; the position of the first damaged one, relative to the memory. */
static int guards_are_whole(ptrdiff_t *damaged)
{
    const unsigned char *after = running.shared + GUARD_BYTES + running.shared_bytes;
    for (size_t i = 0; i < GUARD_BYTES; ++i) {
        *damaged = (ptrdiff_t)i - GUARD_BYTES;
        if (running.shared[i] != guard_byte(i))
            return 0;
        *damaged = (ptrdiff_t)(running.shared_bytes + i);
        if (after[i] != guard_byte(i))
            return 0;
    }
    return 1;
}

static void prepare_shared()
{
    unsigned char *memory = running.shared + GUARD_BYTES;
    const uint64_t seed = 0x9E3779B97F4A7C15ull ^ running.random ^ blockIdx.x;
    for (size_t i = 0; i < GUARD_BYTES; ++i) {
        running.shared[i] = guard_byte(i);
        memory[running.shared_bytes + i] = guard_byte(i);
    }
    fill_noise(memory, memory + running.shared_bytes, seed);
#if defined(__linux__)
    fill_noise(__start_mmaemu_shared, __stop_mmaemu_shared, seed);
#endif
}

static void run_block()
{
    ptrdiff_t damaged = 0;
    prepare_shared();
    start_fibers();
    run_fibers();
    if (!running.failed && !guards_are_whole(&damaged))
        note_failure("block %u,%u wrote beside its %zu bytes of dynamic shared memory, at byte %td",
                     blockIdx.x, blockIdx.y, running.shared_bytes, damaged);
}

static void run_grid()
{
    const uint64_t blocks = (uint64_t)gridDim.x * gridDim.y;
    /* With a seed the blocks are visited backwards from a drawn one. */
    const uint64_t first = running.random ? next_random(&running.random) % blocks : 0;
    for (uint64_t i = 0; i < blocks && !running.failed; ++i) {
        const uint64_t index = running.random ? (first + blocks - i) % blocks : i;
        blockIdx.x = (unsigned)(index % gridDim.x);
        blockIdx.y = (unsigned)(index / gridDim.x);
        run_block();
    }
}

/* ---- Memory and control words ---- */

/* One region of all stacks, each above a page that faults; null if the system refuses. */
static unsigned char *map_stacks()
{
    const size_t each = STACK_BYTES + GUARD_BYTES;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *region = (unsigned char *)mmap(
        nullptr, each * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED)
        return nullptr;
    if (page <= GUARD_BYTES)
        for (size_t i = 0; i < MAX_THREADS; ++i)
            mprotect(region + i * each, page, PROT_NONE);
    return region;
}

static int reserve_memory(size_t shared_bytes)
{
    if (running.stacks == nullptr)
        running.stacks = map_stacks();
    if (running.shared == nullptr)
        running.shared = (unsigned char *)aligned_alloc(GUARD_BYTES, 1u << 18);
    running.shared_bytes = shared_bytes;
    return running.stacks != nullptr && running.shared != nullptr;
}

/* Nearest even, no flushing: what the arithmetic of rounding.h stands on. */
static uint64_t set_float_mode(int ours, uint64_t saved)
{
#if defined(__x86_64__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(ours ? 0x1F80u : (unsigned)saved);
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    asm volatile("mrs %0, fpcr" : "=r"(before));
    saved = ours ? 0 : saved;
    asm volatile("msr fpcr, %0" ::"r"(saved));
    return before;
#else
    (void)ours;
    return saved;
#endif
}

static int launch_kernel(dim3 grid, unsigned block, size_t shared_bytes, uint64_t seed)
{
    if (grid.x == 0 || grid.y == 0 || block == 0 || block > MAX_THREADS || grid.y > 65535 ||
        shared_bytes > MAX_SHARED) {
        note_failure("grid %u x %u, block %u, %zu bytes of shared memory: out of range", grid.x,
                     grid.y, block, shared_bytes);
        return LAUNCH_BAD_SIZE;
    }
    if (!reserve_memory(shared_bytes)) {
        note_failure("no memory for the stacks of the threads");
        return LAUNCH_NO_MEMORY;
    }
    gridDim = grid;
    blockDim = {block, 1, 1};
    running.threads = block;
    running.random = seed;
    const uint64_t saved = set_float_mode(1, 0);
    run_grid();
    set_float_mode(0, saved);
    return running.failed ? LAUNCH_FAILED : LAUNCH_OK;
}

extern const entry ENTRIES[];
extern const size_t ENTRY_COUNT;

static const entry *find_entry(const char *name)
{
    for (size_t i = 0; i < ENTRY_COUNT; ++i)
        if (strcmp(ENTRIES[i].name, name) == 0)
            return &ENTRIES[i];
    return nullptr;
}

static int find_and_launch(const char *name, dim3 grid, unsigned block, size_t shared_bytes,
                           const void *parameter, uint64_t parameter_bytes, uint64_t seed)
{
    running.failed = 0;
    running.message[0] = '\0';
    running.kernel = find_entry(name);
    running.parameter = parameter;
    if (running.kernel == nullptr) {
        note_failure("there is no entry %s", name);
        return LAUNCH_NO_ENTRY;
    }
    if (running.kernel->parameter_bytes != parameter_bytes) {
        note_failure("%s takes a parameter of %zu bytes, not %llu", name,
                     running.kernel->parameter_bytes, (unsigned long long)parameter_bytes);
        return LAUNCH_BAD_PARAMETER;
    }
    return launch_kernel(grid, block, shared_bytes, seed);
}

template <class P> static constexpr size_t parameter_bytes(void (*)(P))
{
    return sizeof(P);
}

template <auto kernel, class P> static void run_with(void (*)(P), const void *parameter)
{
    P copy;
    memcpy(&copy, parameter, sizeof copy);
    kernel(copy);
}

template <auto kernel> static void run_kernel(const void *parameter)
{
    run_with<kernel>(kernel, parameter);
}

} // namespace mmaemu_host

#define MMAEMU_ENTRY_ROW(NAME)                                                                     \
    {#NAME, mmaemu_host::run_kernel<NAME>, mmaemu_host::parameter_bytes(NAME)}

#define MMAEMU_HOST_EXPORT extern "C" __attribute__((visibility("default")))

MMAEMU_HOST_EXPORT int mmaemu_host_launch(const char *entry, unsigned grid_x, unsigned grid_y,
                                          unsigned block, unsigned shared_bytes,
                                          const void *parameter, unsigned long long parameter_bytes,
                                          unsigned long long order_seed)
{
    pthread_mutex_lock(&mmaemu_host::one_launch);
    const int status = mmaemu_host::find_and_launch(entry, {grid_x, grid_y, 1}, block, shared_bytes,
                                                    parameter, parameter_bytes, order_seed);
    pthread_mutex_unlock(&mmaemu_host::one_launch);
    return status;
}

/* Why the last launch failed; empty after a good one. */
MMAEMU_HOST_EXPORT const char *mmaemu_host_error(void)
{
    return mmaemu_host::running.message;
}

/* Exchanges the tensor core that the following launches have: 0, or -1 for an unknown unit. */
MMAEMU_HOST_EXPORT int mmaemu_host_tensor_core(int unit, mmaemu_host::tensor_core_model *model)
{
    if (unit < 0 || unit >= mmaemu_host::UNIT_COUNT)
        return -1;
    pthread_mutex_lock(&mmaemu_host::one_launch);
    const mmaemu_host::tensor_core_model before = mmaemu_host::tensor_core[unit];
    mmaemu_host::tensor_core[unit] = *model;
    *model = before;
    pthread_mutex_unlock(&mmaemu_host::one_launch);
    return 0;
}

#endif
