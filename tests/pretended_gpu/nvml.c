// NVML: one kind of card, always busy, that tells everything.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "card.h"
int nvmlInit_v2() { return card_count() ? 0 : 9; }
int nvmlInit() { return 0; }
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int e) { return e == 3 ? "Not Supported" : e ? "Unknown Error" : "Success"; }
int nvmlSystemGetDriverVersion(char* v, unsigned n) {
    strncpy(v, "580.95.05", n);
    return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* v) {
    *v = CARD_CUDA;
    return 0;
}
int nvmlSystemGetCudaDriverVersion(int* v) {
    *v = CARD_CUDA;
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned* n) {
    *n = card_count();
    return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** h) {
    *h = (void*)(long)(i + 1);
    return (int)i < card_count() ? 0 : 2;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* s, void** h) {
    unsigned d, b;
    sscanf(s, "%x:%x", &d, &b);
    *h = (void*)(long)b;
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char* s, void** h) {
    *h = (void*)1;
    return 0;
}
int nvmlDeviceGetIndex(void* h, unsigned* i) {
    *i = (long)h - 1;
    return 0;
}
int nvmlDeviceGetName(void* h, char* n, unsigned l) {
    strncpy(n, card_name(), l);
    return 0;
}
int nvmlDeviceGetUUID(void* h, char* n, unsigned l) {
    unsigned char b[16];
    for (int i = 0; i < 16; i++) b[i] = card_uuid_byte(i, (long)h - 1);
    snprintf(n, l, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
             b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return 0;
}
struct memory {
    unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void* h, struct memory* m) {
    m->total = card_bytes();
    m->used = card_bytes() / 10;
    m->free = m->total - m->used;
    return 0;
}
struct util {
    unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void* h, struct util* u) {
    u->gpu = 97;
    u->memory = 55;
    return 0;
}
int nvmlDeviceGetPowerUsage(void* h, unsigned* p) {
    *p = 398000;
    return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void* h, unsigned* p) {
    *p = 450000;
    return 0;
}
int nvmlDeviceGetTemperature(void* h, int s, unsigned* t) {
    *t = 71;
    return 0;
}
int nvmlDeviceGetClockInfo(void* h, int c, unsigned* m) {
    *m = 2520;
    return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void* h, unsigned long long* r) {
    *r = 4;
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* h, unsigned long long* mj) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *mj = (unsigned long long)((t.tv_sec + t.tv_nsec / 1e9) * 398000);
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void* h, int* a, int* b) {
    *a = card_capability() / 10;
    *b = card_capability() % 10;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* h, unsigned* n, void* p) {
    *n = 0;
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void* h, unsigned* n, void* p) {
    *n = 0;
    return 0;
}
int nvmlDeviceGetProcessUtilization(void* h, void* p, unsigned* n, unsigned long long t) {
    *n = 0;
    return 6;
}
int nvmlDeviceGetComputeRunningProcesses(void* h, unsigned* n, void* p) {
    *n = 0;
    return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses(void* h, unsigned* n, void* p) {
    *n = 0;
    return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* h, unsigned l, int* t) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* h, unsigned l, void* t) { return 3; }
