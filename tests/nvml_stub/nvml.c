/* A libnvidia-ml.so.1 that tells what a text file says, read anew at each call: lines "key value".
 *
 * Keys of a device start with its number: "0.memory_used 1000". What the file lacks is not supported, as a driver would
 * say. MIG instances are devices from number 8 on, with a "parent". Without AUTOTUNE_NVML_STUB there is no driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define DEVICES 16

typedef int nvmlReturn_t;
typedef int *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned int pid; unsigned long long bytes; unsigned int instance, compute; } process_t;

static int handles[DEVICES];

/* Copies the value of `key` into `value` (1024 bytes); 0 when the file has no such line. */
static int text(const char *key, char *value) {
    const char *path = getenv("AUTOTUNE_NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[2048];
    size_t length = strlen(key);
    int found = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, 1024, "%s", line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static int device_text(nvmlDevice_t device, const char *name, char *value) {
    char key[128];
    if (!device) return 0;
    snprintf(key, sizeof key, "%ld.%s", (long)(device - handles), name);
    return text(key, value);
}

static nvmlReturn_t number(nvmlDevice_t device, const char *name, unsigned long long *value) {
    char found[1024];
    if (!device) return INVALID_ARGUMENT;
    if (text("hang_s", found)) sleep(atoi(found));
    if (!device_text(device, name, found)) return NOT_SUPPORTED;
    *value = strtoull(found, NULL, 0);
    return SUCCESS;
}

static nvmlReturn_t small_number(nvmlDevice_t device, const char *name, unsigned int *value) {
    unsigned long long found;
    nvmlReturn_t result = number(device, name, &found);
    if (result == SUCCESS) *value = (unsigned int)found;
    return result;
}

static nvmlReturn_t words(nvmlDevice_t device, const char *name, char *value, unsigned int length) {
    char found[1024];
    if (!device_text(device, name, found)) return NOT_SUPPORTED;
    snprintf(value, length, "%s", found);
    return SUCCESS;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    char found[1024];
    (void)flags;
    return text("count", found) ? SUCCESS : DRIVER_NOT_LOADED;
}
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *value, unsigned int length) {
    snprintf(value, length, "stub");
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    char found[1024];
    if (!text("count", found)) return DRIVER_NOT_LOADED;
    *count = atoi(found);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned int count = 0;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count) return INVALID_ARGUMENT;
    *device = &handles[index];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char found[1024];
    for (int index = 0; index < DEVICES; index++) {
        if (device_text(&handles[index], "uuid", found) && strcmp(found, uuid) == 0) {
            *device = &handles[index];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *device) {
    char found[1024];
    if (!device_text(instance, "parent", found)) return NOT_SUPPORTED;
    *device = &handles[atoi(found)];
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *value, unsigned int length) { return words(d, "uuid", value, length); }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *value, unsigned int length) { return words(d, "name", value, length); }

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, memory_t *memory) {
    nvmlReturn_t result = number(device, "memory_used", &memory->used);
    if (result == SUCCESS) result = number(device, "memory_total", &memory->total);
    if (result == SUCCESS) memory->free = memory->total - memory->used;
    return result;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, memory_v2_t *memory) {
    memory_t plain = {0, 0, 0};
    char found[1024];
    if (device_text(device, "old_driver", found)) return NOT_SUPPORTED;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return result;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, int type, unsigned int *mhz) {
    return type == 1 ? small_number(d, "sm_clock_mhz", mhz) : NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *bits) { return number(d, "throttle", bits); }
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned int *degrees) {
    return sensor == 0 ? small_number(d, "temperature_c", degrees) : INVALID_ARGUMENT;
}
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *mw) { return small_number(d, "power_mw", mw); }
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *mj) { return number(d, "energy_mj", mj); }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, utilization_t *rates) {
    rates->memory = 0;
    return small_number(d, "utilisation_pct", &rates->gpu);
}

/* "processes 12:1000,13:?": ids and bytes, `?` where the driver hides them. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, process_t *processes) {
    char found[1024], *rest = found, *entry;
    unsigned int room = *count, seen = 0;
    if (!device_text(device, "processes", found)) return NOT_SUPPORTED;
    while ((entry = strsep(&rest, ",")) != NULL) {
        char *size = strchr(entry, ':');
        if (!size) continue;
        if (processes && seen < room) {
            process_t process = {atoi(entry), size[1] == '?' ? ~0ULL : strtoull(size + 1, NULL, 0), 0, 0};
            processes[seen] = process;
        }
        seen++;
    }
    *count = seen;
    return seen > room || (!processes && seen) ? INSUFFICIENT_SIZE : SUCCESS;
}
