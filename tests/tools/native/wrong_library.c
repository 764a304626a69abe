/* A CPU library that is wrong in the way that the variable WRONG names, over the right one at
 * RIGHT, for the tests of tools/cpu_driver.py. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

typedef mmaemu_i64 (*function)(mmaemu_i64, mmaemu_i64, mmaemu_i64, mmaemu_i64, mmaemu_i64,
                               mmaemu_i64, mmaemu_i64);

static function right(const char *name)
{
    void *library = dlopen(RIGHT, RTLD_NOW);
    function found = library ? (function)dlsym(library, name) : 0;
    if (!found)
        abort();
    return found;
}

static int is_wrong_in(const char *way)
{
    const char *chosen = getenv("WRONG");
    return chosen && strcmp(chosen, way) == 0;
}

#define PASS_ON(name)                                                                              \
    MMAEMU_EXPORT mmaemu_i64 name(mmaemu_i64 a, mmaemu_i64 b, mmaemu_i64 c, mmaemu_i64 d,          \
                                  mmaemu_i64 e, mmaemu_i64 f, mmaemu_i64 g);                       \
    mmaemu_i64 name(mmaemu_i64 a, mmaemu_i64 b, mmaemu_i64 c, mmaemu_i64 d, mmaemu_i64 e,          \
                    mmaemu_i64 f, mmaemu_i64 g)                                                    \
    {                                                                                              \
        return right(#name)(a, b, c, d, e, f, g);                                                  \
    }

PASS_ON(mmaemu_cpu_abi)
PASS_ON(mmaemu_cpu_isas)
PASS_ON(mmaemu_cpu_check)
PASS_ON(mmaemu_cpu_tiles)
PASS_ON(mmaemu_cpu_scratch_bytes)
PASS_ON(mmaemu_cpu_gemm)
PASS_ON(mmaemu_cpu_nonfinite)
PASS_ON(mmaemu_cpu_finish)

mmaemu_i32 mmaemu_cpu_run(struct mmaemu_request *request, void *scratch, mmaemu_i64 size)
{
    mmaemu_u8 *out = (mmaemu_u8 *)request->out;
    const mmaemu_i64 status =
        right("mmaemu_cpu_run")((mmaemu_i64)request, (mmaemu_i64)scratch, size, 0, 0, 0, 0);
    if (is_wrong_in("bit") && request->kernel == MMAEMU_KERNEL_CVTT)
        out[1] += 4;
    if (is_wrong_in("guard"))
        out[-1] = 0;
    if (is_wrong_in("operand"))
        *(mmaemu_u8 *)request->a += 1;
    if (is_wrong_in("mode")) {
#if defined(__x86_64__)
        const mmaemu_u32 mode = 0x3F80;
        __asm__ volatile("ldmxcsr %0" : : "m"(mode));
#else
        __asm__ volatile("msr fpcr, %0" : : "r"(0ull));
#endif
    }
    return (mmaemu_i32)status;
}
