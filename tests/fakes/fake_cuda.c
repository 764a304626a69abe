/* A FAKE CUDA driver and NVRTC for the tests of mmaemu/backends/cuda: no GPU is involved.
 *
 * It has as many devices as the test says, reads images as far as needed to tell whether one fits a
 * device, writes every call with its thread and arguments to a log, and fails in the function that
 * the test names. A launch is handed to the kernel that was compiled for the host, if the test gave
 * one, and runs to its end before the call returns. Status numbers are those of cuda.h.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 4
#define ENTRIES 32
#define DEPTH 8

enum {
    INVALID_VALUE = 1,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    CONTEXT_IS_DESTROYED = 709,
    LAUNCH_FAILED = 719
};

typedef int host_launch(const char *entry, unsigned grid_x, unsigned grid_y, unsigned block,
                        unsigned shared_bytes, const void *parameter,
                        unsigned long long parameter_bytes, unsigned long long order_seed);

struct {
    char failing[64];
    int32_t status;
    int32_t driver_version;
    int32_t ptx_version; /* The newest PTX that the driver takes, as 10 * major + minor. */
    int32_t devices;
    struct {
        char name[64];
        int32_t capability; /* 10 * major + minor */
        int32_t sm_count;
        uint8_t uuid[16];
    } device[DEVICES];
} fake;

typedef struct {
    int ordinal;
    int lost;
} context;

typedef struct {
    context *owner;
    const uint8_t *image;
    size_t size;
} module;

typedef struct {
    module *owner;
    char name[64];
    int shared_limit;
} function;

static struct {
    char name[64];
    host_launch *launch;
    unsigned long long parameter_bytes;
} hosts[ENTRIES];

static context *primary[DEVICES];
static char *log_text;
static size_t log_size;
static int threads;
static pthread_mutex_t one_writer = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int thread;
static _Thread_local context *stack[DEPTH];
static _Thread_local int depth;

static void note(const char *format, ...)
{
    char line[512];
    va_list arguments;
    pthread_mutex_lock(&one_writer);
    if (!thread)
        thread = ++threads;
    int used = snprintf(line, sizeof line, "%d ", thread);
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    line[used++] = '\n';
    log_text = realloc(log_text, log_size + (size_t)used + 1);
    memcpy(log_text + log_size, line, (size_t)used);
    log_size += (size_t)used;
    log_text[log_size] = 0;
    pthread_mutex_unlock(&one_writer);
}

/* For the tests. */

const char *fake_log(void)
{
    return log_text ? log_text : "";
}

void fake_reset(void)
{
    log_size = 0;
    if (log_text)
        log_text[0] = 0;
    memset(hosts, 0, sizeof hosts);
    memset(primary, 0, sizeof primary);
}

void fake_forget_calls(void)
{
    log_size = 0;
    if (log_text)
        log_text[0] = 0;
}

int fake_host(const char *name, void *launch, unsigned long long parameter_bytes)
{
    for (int i = 0; i < ENTRIES; i++)
        if (!hosts[i].launch || strcmp(hosts[i].name, name) == 0) {
            snprintf(hosts[i].name, sizeof hosts[i].name, "%s", name);
            hosts[i].launch = (host_launch *)launch;
            hosts[i].parameter_bytes = parameter_bytes;
            return 0;
        }
    return INVALID_VALUE;
}

/* What a reset of the device by other code does: its context is gone, the next one is another. */
void fake_lose_context(int ordinal)
{
    primary[ordinal]->lost = 1;
    primary[ordinal] = NULL;
}

int fake_current(void)
{
    return depth ? stack[depth - 1]->ordinal : -1;
}

/* The driver. */

#define FAIL_IF_NAMED(name)                                                                        \
    do {                                                                                           \
        if (strcmp(fake.failing, name) == 0)                                                       \
            return fake.status;                                                                    \
    } while (0)

int cuInit(unsigned flags)
{
    note("cuInit");
    FAIL_IF_NAMED("cuInit");
    return flags ? INVALID_VALUE : 0;
}

int cuDriverGetVersion(int *version)
{
    note("cuDriverGetVersion");
    FAIL_IF_NAMED("cuDriverGetVersion");
    *version = fake.driver_version;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    note("cuDeviceGet ordinal=%d", ordinal);
    FAIL_IF_NAMED("cuDeviceGet");
    if (ordinal < 0 || ordinal >= fake.devices)
        return INVALID_DEVICE;
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device)
{
    note("cuDeviceGetName device=%d", device);
    FAIL_IF_NAMED("cuDeviceGetName");
    snprintf(name, (size_t)size, "%s", fake.device[device].name);
    return 0;
}

int cuDeviceGetUuid(uint8_t *uuid, int device)
{
    note("cuDeviceGetUuid device=%d", device);
    FAIL_IF_NAMED("cuDeviceGetUuid");
    memcpy(uuid, fake.device[device].uuid, 16);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    const int capability = fake.device[device].capability;
    note("cuDeviceGetAttribute attribute=%d device=%d", attribute, device);
    FAIL_IF_NAMED("cuDeviceGetAttribute");
    *value = attribute == 16   ? fake.device[device].sm_count
             : attribute == 75 ? capability / 10
             : attribute == 76 ? capability % 10
                               : -1;
    return 0;
}

int cuCtxGetDevice(int *device)
{
    note("cuCtxGetDevice");
    FAIL_IF_NAMED("cuCtxGetDevice");
    if (!depth)
        return INVALID_CONTEXT;
    *device = stack[depth - 1]->ordinal;
    return 0;
}

int cuDevicePrimaryCtxRetain(context **made, int device)
{
    note("cuDevicePrimaryCtxRetain device=%d", device);
    FAIL_IF_NAMED("cuDevicePrimaryCtxRetain");
    if (!primary[device]) {
        primary[device] = calloc(1, sizeof(context));
        primary[device]->ordinal = device;
    }
    *made = primary[device];
    return 0;
}

int cuCtxPushCurrent_v2(context *pushed)
{
    note("cuCtxPushCurrent device=%d", pushed ? pushed->ordinal : -1);
    FAIL_IF_NAMED("cuCtxPushCurrent_v2");
    if (!pushed || pushed->lost)
        return CONTEXT_IS_DESTROYED;
    if (depth == DEPTH)
        return INVALID_VALUE;
    stack[depth++] = pushed;
    return 0;
}

int cuCtxPopCurrent_v2(context **popped)
{
    note("cuCtxPopCurrent device=%d", depth ? stack[depth - 1]->ordinal : -1);
    if (!depth)
        return INVALID_CONTEXT;
    *popped = stack[--depth];
    FAIL_IF_NAMED("cuCtxPopCurrent_v2");
    return 0;
}

static uint32_t word(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint64_t wide(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Whether machine code for an architecture, or for it alone, runs on a capability. */
static int code_fits(int arch, int accelerated, int capability)
{
    if (accelerated)
        return arch == capability;
    return arch / 10 == capability / 10 && arch <= capability;
}

static int ptx_status(const uint8_t *text, size_t size, int capability)
{
    const char *version = memmem(text, size, ".version ", 9);
    const char *target = memmem(text, size, ".target sm_", 11);
    if (!version || !target)
        return INVALID_IMAGE;
    const char *minor = strchr(version, '.') + 1;
    minor = strchr(minor, '.') + 1;
    if (10 * atoi(version + 9) + atoi(minor) > fake.ptx_version)
        return UNSUPPORTED_PTX_VERSION;
    return atoi(target + 11) <= capability ? 0 : NO_BINARY_FOR_GPU;
}

static int fatbin_status(const uint8_t *image, size_t size, int capability)
{
    int status = NO_BINARY_FOR_GPU;
    size_t at = (size_t)image[6] | (size_t)image[7] << 8;
    while (at < size) {
        const uint8_t *entry = image + at;
        const int kind = entry[0] | entry[1] << 8;
        const size_t header = word(entry + 4);
        const size_t payload = wide(entry + 8);
        const int arch = (int)word(entry + 28);
        const int accelerated = (wide(entry + 40) & 0x100000) != 0;
        if (kind == 2 && code_fits(arch, accelerated, capability))
            return 0;
        if (kind == 1 && arch <= capability && status != 0)
            status = ptx_status(entry + header, payload, capability);
        at += header + payload;
    }
    return status;
}

static int cubin_status(const uint8_t *image, int capability)
{
    const uint32_t flags = word(image + 48);
    const int arch = (int)(image[8] >= 8 ? flags >> 8 & 0xFF : flags & 0xFF);
    /* A cubin does not say whether its architecture has a letter where this is looked for. */
    return code_fits(arch, 0, capability) ? 0 : NO_BINARY_FOR_GPU;
}

static size_t elf_size(const uint8_t *image)
{
    const size_t programs = (image[54] | image[55] << 8) * (size_t)(image[56] | image[57] << 8);
    const size_t sections = (image[58] | image[59] << 8) * (size_t)(image[60] | image[61] << 8);
    const size_t one = wide(image + 32) + programs;
    const size_t other = wide(image + 40) + sections;
    return one > other ? one : other;
}

int cuModuleLoadData(module **made, const uint8_t *image)
{
    const int current = fake_current();
    note("cuModuleLoadData device=%d", current);
    FAIL_IF_NAMED("cuModuleLoadData");
    if (current < 0)
        return INVALID_CONTEXT;
    const int capability = fake.device[current].capability;
    size_t size;
    int status;
    if (word(image) == 0xBA55ED50) {
        size = (size_t)(image[6] | image[7] << 8) + wide(image + 8);
        status = fatbin_status(image, size, capability);
    } else if (memcmp(image, "\177ELF", 4) == 0) {
        size = elf_size(image);
        status = cubin_status(image, capability);
    } else {
        size = strlen((const char *)image);
        status = ptx_status(image, size, capability);
    }
    if (status)
        return status;
    *made = calloc(1, sizeof(module));
    (*made)->owner = stack[depth - 1];
    (*made)->image = memcpy(malloc(size), image, size);
    (*made)->size = size;
    return 0;
}

int cuModuleGetFunction(function **made, module *from, const char *name)
{
    note("cuModuleGetFunction name=%s", name);
    FAIL_IF_NAMED("cuModuleGetFunction");
    if (!memmem(from->image, from->size, name, strlen(name)))
        return NOT_FOUND;
    *made = calloc(1, sizeof(function));
    (*made)->owner = from;
    (*made)->shared_limit = 48 << 10;
    snprintf((*made)->name, sizeof(*made)->name, "%s", name);
    return 0;
}

int cuFuncSetAttribute(function *of, int attribute, int value)
{
    note("cuFuncSetAttribute name=%s attribute=%d value=%d", of->name, attribute, value);
    FAIL_IF_NAMED("cuFuncSetAttribute");
    if (attribute != 8 || value > 227 << 10)
        return INVALID_VALUE;
    of->shared_limit = value;
    return 0;
}

/* Streams are numbers: 0, or (ordinal + 1) * 65536 + anything for a stream of that device. */
int cuLaunchKernel(function *f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, uintptr_t stream,
                   void **parameters, void **extra)
{
    const int current = fake_current();
    note("cuLaunchKernel name=%s device=%d grid=%ux%u block=%u shared=%u stream=%zu", f->name,
         current, grid_x, grid_y, block_x, shared_bytes, (size_t)stream);
    FAIL_IF_NAMED("cuLaunchKernel");
    if (current < 0 || f->owner->owner != stack[depth - 1] || f->owner->owner->lost)
        return INVALID_CONTEXT;
    if (stream && (int)(stream >> 16) - 1 != current)
        return INVALID_HANDLE;
    if (grid_z != 1 || block_y != 1 || block_z != 1 || extra || !grid_x || !grid_y ||
        grid_y > 65535 || block_x > 1024 || shared_bytes > (unsigned)f->shared_limit)
        return INVALID_VALUE;
    for (int i = 0; i < ENTRIES; i++)
        if (hosts[i].launch && strcmp(hosts[i].name, f->name) == 0 &&
            hosts[i].launch(f->name, grid_x, grid_y, block_x, shared_bytes, parameters[0],
                            hosts[i].parameter_bytes, 0))
            return LAUNCH_FAILED;
    return 0;
}

/* NVRTC: what it "compiles" is a header and the options, which name the kernels. */

typedef struct {
    char options[1024];
    int arch;
    int headers;
} program;

static const int nvrtc_archs[] = {75, 80, 86, 89, 90};
static const char nvrtc_log[] = "v4.cu(1): error: as the test wants";

int nvrtcVersion(int *major, int *minor)
{
    FAIL_IF_NAMED("nvrtcVersion");
    *major = 12;
    *minor = 8;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *count)
{
    FAIL_IF_NAMED("nvrtcGetNumSupportedArchs");
    *count = sizeof nvrtc_archs / sizeof nvrtc_archs[0];
    return 0;
}

int nvrtcGetSupportedArchs(int *archs)
{
    FAIL_IF_NAMED("nvrtcGetSupportedArchs");
    memcpy(archs, nvrtc_archs, sizeof nvrtc_archs);
    return 0;
}

int nvrtcCreateProgram(program **made, const char *source, const char *name, int count,
                       const char *const *headers, const char *const *names)
{
    note("nvrtcCreateProgram name=%s headers=%d", name, count);
    FAIL_IF_NAMED("nvrtcCreateProgram");
    for (int i = 0; i < count; i++)
        if (!headers[i][0] || !names[i][0])
            return 3;
    if (!source[0])
        return 3;
    *made = calloc(1, sizeof(program));
    (*made)->headers = count;
    return 0;
}

int nvrtcDestroyProgram(program **made)
{
    note("nvrtcDestroyProgram");
    free(*made);
    FAIL_IF_NAMED("nvrtcDestroyProgram");
    return 0;
}

int nvrtcCompileProgram(program *of, int count, const char *const *options)
{
    for (int i = 0; i < count; i++) {
        const char *arch = strstr(options[i], "arch");
        if (arch)
            of->arch = atoi(strchr(arch, '_') + 1);
        strncat(of->options, options[i], sizeof of->options - strlen(of->options) - 2);
        strcat(of->options, "\n");
    }
    note("nvrtcCompileProgram arch=%d", of->arch);
    FAIL_IF_NAMED("nvrtcCompileProgram");
    return 0;
}

int nvrtcGetProgramLogSize(program *of, size_t *size)
{
    (void)of;
    *size = sizeof nvrtc_log;
    return 0;
}

int nvrtcGetProgramLog(program *of, char *text)
{
    (void)of;
    memcpy(text, nvrtc_log, sizeof nvrtc_log);
    return 0;
}

int nvrtcGetCUBINSize(program *of, size_t *size)
{
    FAIL_IF_NAMED("nvrtcGetCUBINSize");
    *size = 64 + strlen(of->options);
    return 0;
}

int nvrtcGetCUBIN(program *of, char *cubin)
{
    FAIL_IF_NAMED("nvrtcGetCUBIN");
    const size_t size = strlen(of->options);
    memset(cubin, 0, 64);
    memcpy(cubin, "\177ELF\2\1\1\63\7", 9);
    cubin[40] = 64;
    cubin[48] = (char)of->arch;
    cubin[58] = 1;
    cubin[60] = (char)(size & 0xFF);
    cubin[61] = (char)(size >> 8);
    memcpy(cubin + 64, of->options, size);
    return 0;
}

int nvrtcGetPTXSize(program *of, size_t *size)
{
    FAIL_IF_NAMED("nvrtcGetPTXSize");
    *size = 64 + strlen(of->options);
    return 0;
}

int nvrtcGetPTX(program *of, char *ptx)
{
    FAIL_IF_NAMED("nvrtcGetPTX");
    memset(ptx, 0, 64 + strlen(of->options));
    sprintf(ptx, ".version 8.7\n.target sm_%d\n%s", of->arch, of->options);
    return 0;
}
