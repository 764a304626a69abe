/* The floating-point state of the calling thread: set to the default, and put back. */
#ifndef MMAEMU_CPU_FLOATS_H
#define MMAEMU_CPU_FLOATS_H

#include "../numerics/types.h"

#if defined(__x86_64__)

typedef mmaemu_u32 float_state;

/* Nearest even, nothing flushed, nothing trapped, whatever the caller has set. */
static inline float_state float_state_default(void)
{
    const mmaemu_u32 wanted = 0x1F80u;
    mmaemu_u32 saved;
    __asm__ volatile("stmxcsr %0" : "=m"(saved));
    __asm__ volatile("ldmxcsr %0" : : "m"(wanted) : "memory");
    return saved;
}

static inline void float_state_restore(float_state saved)
{
    __asm__ volatile("ldmxcsr %0" : : "m"(saved) : "memory");
}

#else

typedef mmaemu_u64 float_state;

static inline float_state float_state_default(void)
{
    mmaemu_u64 saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((mmaemu_u64)0) : "memory");
    return saved;
}

static inline void float_state_restore(float_state saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(saved) : "memory");
}

#endif

#endif
