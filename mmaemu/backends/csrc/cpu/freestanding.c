/* The two functions that compilers call on their own, so that the library needs no C library. */
#include "abi.h"

void *memset(void *target, int value, __SIZE_TYPE__ count);
void *memcpy(void *restrict target, const void *restrict source, __SIZE_TYPE__ count);

void *memset(void *target, int value, __SIZE_TYPE__ count)
{
    mmaemu_u8 *bytes = (mmaemu_u8 *)target;
    while (count-- > 0)
        *bytes++ = (mmaemu_u8)value;
    return target;
}

void *memcpy(void *restrict target, const void *restrict source, __SIZE_TYPE__ count)
{
    mmaemu_u8 *to = (mmaemu_u8 *)target;
    const mmaemu_u8 *from = (const mmaemu_u8 *)source;
    while (count-- > 0)
        *to++ = *from++;
    return target;
}

#if defined(_WIN32)
/* Entry point of the DLL: there is nothing to set up. */
int __stdcall DllMainCRTStartup(void *instance, mmaemu_u32 reason, void *reserved);

int __stdcall DllMainCRTStartup(void *instance, mmaemu_u32 reason, void *reserved)
{
    (void)instance;
    (void)reason;
    (void)reserved;
    return 1;
}

/* The compiler refers to this wherever floating point is used. */
int _fltused = 1;
#endif
