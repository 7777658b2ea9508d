/* A CUDA driver that computes nothing: it writes down, as one line of JSON a call, what a launcher asks of it.
 *
 * FAKE_LIBCUDA_LOG names the file. FAKE_LIBCUDA_PARAMETERS names one that stands for what a real driver knows from the cubins:
 * lines "MODULE ENTRY BYTES BYTES ...", modules counted in the order in which they are loaded. FAKE_LIBCUDA_SMS,
 * FAKE_LIBCUDA_CAPABILITY ("9.0") and FAKE_LIBCUDA_NAME say what card it is; FAKE_LIBCUDA_FAIL names a call that is refused with
 * CUDA_ERROR_OUT_OF_MEMORY.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PARAMETERS 64

struct entry {
    int module, n_parameters, bytes[MOST_PARAMETERS];
    char name[128];
};

static int n_modules, n_maps, n_allocated;
static CUcontext current;

static const char *setting(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value != NULL ? value : otherwise;
}

static FILE *log_file(void)
{
    static FILE *file;
    if (file == NULL) {
        file = fopen(setting("FAKE_LIBCUDA_LOG", "/dev/null"), "w");
        setvbuf(file, NULL, _IOLBF, 0);
    }
    return file;
}

static CUresult outcome(const char *call)
{
    return strcmp(setting("FAKE_LIBCUDA_FAIL", ""), call) == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void print_list(FILE *file, const char *name, const unsigned long long *values, unsigned n)
{
    fprintf(file, ", \"%s\": [", name);
    for (unsigned i = 0; i < n; i++)
        fprintf(file, "%s%llu", i ? ", " : "", values[i]);
    fprintf(file, "]");
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return outcome("cuInit");
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "some error";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)length, "%s", setting("FAKE_LIBCUDA_NAME", "a card"));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    int major = 0, minor = 0;
    sscanf(setting("FAKE_LIBCUDA_CAPABILITY", "9.0"), "%d.%d", &major, &minor);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = major; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = minor; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = atoi(setting("FAKE_LIBCUDA_SMS", "132")); return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = (CUcontext)0x1000;
    fprintf(log_file(), "{\"call\": \"retain\"}\n");
    return outcome("cuDevicePrimaryCtxRetain");
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    fprintf(log_file(), "{\"call\": \"release\"}\n");
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    if (current != NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    *context = current;
    current = NULL;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    fprintf(log_file(), "{\"call\": \"load\", \"first_byte\": %d}\n", *(const unsigned char *)image);
    *module = (CUmodule)(uintptr_t)(0x2000 + n_modules++);
    return outcome("cuModuleLoadData");
}

CUresult cuModuleUnload(CUmodule module)
{
    (void)module;
    fprintf(log_file(), "{\"call\": \"unload\"}\n");
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    struct entry *entry = calloc(1, sizeof *entry);
    char line[1024];
    FILE *file = fopen(setting("FAKE_LIBCUDA_PARAMETERS", "/dev/null"), "r");
    entry->module = (int)((uintptr_t)module - 0x2000);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    int found = 0;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        char *word = strtok(line, " \n");
        const int number = atoi(word);
        word = strtok(NULL, " \n");
        if (number != entry->module || strcmp(word, name) != 0)
            continue;
        found = 1;
        while ((word = strtok(NULL, " \n")) != NULL)
            entry->bytes[entry->n_parameters++] = atoi(word);
    }
    fclose(file);
    *function = (CUfunction)entry;
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    const struct entry *entry = (const struct entry *)function;
    fprintf(log_file(), "{\"call\": \"attribute\", \"module\": %d, \"entry\": \"%s\", \"attribute\": %d, \"value\": %d}\n",
            entry->module, entry->name, (int)attribute, value);
    return outcome("cuFuncSetAttribute");
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    const struct entry *entry = (const struct entry *)function;
    FILE *file = log_file();
    (void)extra;
    fprintf(file, "{\"call\": \"launch\", \"module\": %d, \"entry\": \"%s\"", entry->module, entry->name);
    fprintf(file, ", \"grid\": [%u, %u, %u]", config->gridDimX, config->gridDimY, config->gridDimZ);
    fprintf(file, ", \"block\": [%u, %u, %u]", config->blockDimX, config->blockDimY, config->blockDimZ);
    fprintf(file, ", \"shared\": %u, \"stream\": %llu", config->sharedMemBytes, (unsigned long long)(uintptr_t)config->hStream);
    fprintf(file, ", \"attributes\": [");
    for (unsigned i = 0; i < config->numAttrs; i++)
        fprintf(file, "%s[%d, %u, %u, %u]", i ? ", " : "", (int)config->attrs[i].id, config->attrs[i].value.clusterDim.x,
                config->attrs[i].value.clusterDim.y, config->attrs[i].value.clusterDim.z);
    fprintf(file, "], \"current\": %d, \"parameters\": [", current != NULL);
    for (int i = 0; i < entry->n_parameters; i++) {
        fprintf(file, "%s\"", i ? ", " : "");
        for (int byte = 0; byte < entry->bytes[i]; byte++)
            fprintf(file, "%02x", ((const unsigned char *)parameters[i])[byte]);
        fprintf(file, "\"");
    }
    fprintf(file, "]}\n");
    return outcome("cuLaunchKernelEx");
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t n_dimensions, void *address,
                                const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    FILE *file = log_file();
    unsigned long long lists[4][5];
    for (unsigned i = 0; i < n_dimensions; i++) {
        lists[0][i] = shape[i];
        lists[1][i] = i + 1 < n_dimensions ? strides[i] : 0;
        lists[2][i] = box[i];
        lists[3][i] = element_strides[i];
    }
    fprintf(file, "{\"call\": \"encode\", \"number\": %d, \"type\": %d, \"address\": %llu", n_maps, (int)type,
            (unsigned long long)(uintptr_t)address);
    print_list(file, "shape", lists[0], n_dimensions);
    print_list(file, "strides", lists[1], n_dimensions - 1);
    print_list(file, "box", lists[2], n_dimensions);
    print_list(file, "element_strides", lists[3], n_dimensions);
    fprintf(file, ", \"interleave\": %d, \"swizzle\": %d, \"promotion\": %d, \"fill\": %d, \"misplaced\": %d}\n",
            (int)interleave, (int)swizzle, (int)promotion, (int)fill, (int)((uintptr_t)map % 64));
    memset(map, 0xab, sizeof *map);
    memcpy(map, &n_maps, sizeof n_maps);
    n_maps++;
    return outcome("cuTensorMapEncodeTiled");
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t n_bytes, CUstream stream)
{
    fprintf(log_file(), "{\"call\": \"memset\", \"address\": %llu, \"value\": %d, \"bytes\": %zu, \"stream\": %llu}\n",
            (unsigned long long)address, value, n_bytes, (unsigned long long)(uintptr_t)stream);
    return outcome("cuMemsetD8Async");
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t n_bytes, CUstream stream)
{
    *address = 0x700000000000ull + 0x100000000ull * (unsigned)n_allocated++;
    fprintf(log_file(), "{\"call\": \"allocate\", \"address\": %llu, \"bytes\": %zu, \"stream\": %llu}\n",
            (unsigned long long)*address, n_bytes, (unsigned long long)(uintptr_t)stream);
    return outcome("cuMemAllocAsync");
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    fprintf(log_file(), "{\"call\": \"free\", \"address\": %llu, \"stream\": %llu}\n", (unsigned long long)address,
            (unsigned long long)(uintptr_t)stream);
    return CUDA_SUCCESS;
}
