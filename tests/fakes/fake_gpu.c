/* A FAKE CUDA driver and cuBLASLt for the tests of mmaemu/bindings: no GPU is involved.
 *
 * It logs the descriptor it was asked about, answers what the test put into `fake`, fails in the
 * function the test names, and counts descriptors that were not destroyed. Enumeration values are
 * those of cuda.h and cublasLt.h.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct {
    char failing[64];
    int32_t status;
    char device_name[64];
    int32_t sm_count;
    int32_t has_context;
    int32_t version[3];
    int32_t returned;
    int32_t state;
    int32_t config[6];
} fake;

/* What the last heuristic query consisted of. -1 in an attribute: it was not set. */
struct {
    int32_t queries;
    int32_t alive;
    int64_t compute_type, scale_type;
    int64_t operation[32];
    int64_t preference[16];
    int64_t layout[4][4];
    int64_t requested;
} seen;

#define FAIL_IF_NAMED(name)                                                                        \
    do {                                                                                           \
        if (strcmp(fake.failing, name) == 0)                                                       \
            return fake.status;                                                                    \
    } while (0)

int cuInit(unsigned flags)
{
    FAIL_IF_NAMED("cuInit");
    return flags ? 1 : 0;
}

int cuCtxGetDevice(int *device)
{
    FAIL_IF_NAMED("cuCtxGetDevice");
    if (!fake.has_context)
        return 201;
    *device = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    FAIL_IF_NAMED("cuDeviceGet");
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device)
{
    FAIL_IF_NAMED("cuDeviceGetName");
    (void)device;
    strncpy(name, fake.device_name, (size_t)size);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    FAIL_IF_NAMED("cuDeviceGetAttribute");
    (void)device;
    *value = attribute == 16 ? fake.sm_count : attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
    return 0;
}

int cublasLtGetProperty(int which, int *value)
{
    FAIL_IF_NAMED("cublasLtGetProperty");
    *value = fake.version[which];
    return 0;
}

int cublasLtCreate(void **handle)
{
    FAIL_IF_NAMED("cublasLtCreate");
    *handle = &fake;
    return 0;
}

typedef struct {
    int64_t value[32];
} object;

static object *make(int64_t fill)
{
    object *made = malloc(sizeof *made);
    for (int i = 0; i < 32; i++)
        made->value[i] = fill;
    seen.alive++;
    return made;
}

static int destroy(void *made)
{
    free(made);
    seen.alive--;
    return 0;
}

/* cuBLASLt refuses a value whose size is not that of the attribute. */
static int set(object *target, int attribute, const void *value, size_t size, size_t expected)
{
    if (size != expected)
        return 7;
    int64_t wide = 0;
    memcpy(&wide, value, size);
    target->value[attribute] = wide;
    return 0;
}

int cublasLtMatmulDescCreate(void **made, int compute_type, int scale_type)
{
    FAIL_IF_NAMED("cublasLtMatmulDescCreate");
    seen.compute_type = compute_type;
    seen.scale_type = scale_type;
    *made = make(-1);
    return 0;
}

int cublasLtMatmulDescDestroy(void *made)
{
    destroy(made);
    FAIL_IF_NAMED("cublasLtMatmulDescDestroy");
    return 0;
}

int cublasLtMatmulDescSetAttribute(void *target, int attribute, const void *value, size_t size)
{
    FAIL_IF_NAMED("cublasLtMatmulDescSetAttribute");
    size_t expected = attribute == 25 ? 1 : attribute == 17 || attribute == 18 ? sizeof(void *) : 4;
    return set(target, attribute, value, size, expected);
}

int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    FAIL_IF_NAMED("cublasLtMatrixLayoutCreate");
    object *layout = make(-1);
    layout->value[0] = type;
    layout->value[1] = (int64_t)rows;
    layout->value[2] = (int64_t)cols;
    layout->value[3] = ld;
    *made = layout;
    return 0;
}

int cublasLtMatrixLayoutDestroy(void *made)
{
    destroy(made);
    FAIL_IF_NAMED("cublasLtMatrixLayoutDestroy");
    return 0;
}

int cublasLtMatmulPreferenceCreate(void **made)
{
    FAIL_IF_NAMED("cublasLtMatmulPreferenceCreate");
    *made = make(-1);
    return 0;
}

int cublasLtMatmulPreferenceDestroy(void *made)
{
    destroy(made);
    FAIL_IF_NAMED("cublasLtMatmulPreferenceDestroy");
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(void *target, int attribute, const void *value,
                                         size_t size)
{
    FAIL_IF_NAMED("cublasLtMatmulPreferenceSetAttribute");
    return set(target, attribute, value, size, attribute == 1 ? 8 : 4);
}

typedef struct {
    uint64_t algo[8];
    size_t workspace_size;
    int state;
    float waves_count;
    int reserved[4];
} heuristic_result;

int cublasLtMatmulAlgoGetHeuristic(void *handle, object *operation, object *a, object *b, object *c,
                                   object *d, object *preference, int requested,
                                   heuristic_result *result, int *returned)
{
    FAIL_IF_NAMED("cublasLtMatmulAlgoGetHeuristic");
    if (handle != &fake)
        return 1;
    object *layouts[4] = {a, b, c, d};
    seen.queries++;
    seen.requested = requested;
    memcpy(seen.operation, operation->value, sizeof seen.operation);
    memcpy(seen.preference, preference->value, sizeof seen.preference);
    for (int i = 0; i < 4; i++)
        memcpy(seen.layout[i], layouts[i]->value, sizeof seen.layout[i]);
    result->algo[7] = 0x5EED;
    result->state = fake.state;
    *returned = fake.returned;
    return 0;
}

int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t *algo, int attribute, void *value,
                                         size_t size, size_t *written)
{
    FAIL_IF_NAMED("cublasLtMatmulAlgoConfigGetAttribute");
    if (algo[7] != 0x5EED || size != 4)
        return 7;
    memcpy(value, &fake.config[attribute], size);
    *written = size;
    return 0;
}
