// CUDA's runtime over the host's memory: what torch calls of it, with the errors of a card that is full, of a stream
// that is captured, and of an event that was never recorded. Kernels do nothing; what runs in their place is in site/.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "card.h"

static std::recursive_mutex M;
static thread_local int dev = 0;
static thread_local cudaError_t last = cudaSuccess;
struct Block {
    size_t size;
    int dev;
    bool host;
};
static std::map<uintptr_t, Block> blocks;
static size_t used[16];
static int count() {
    const char* visible = getenv("CUDA_VISIBLE_DEVICES");
    static int c = visible && !*visible ? 0 : card_count();
    return c;
}
static const size_t CONTEXT = (size_t)300 << 20;
static cudaError_t E(cudaError_t e) {
    if (e) last = e;
    return e;
}
static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
static FILE* trace() {
    static FILE* f = getenv("TRAINDECK_CARD_TRACE") ? stderr : nullptr;
    return f;
}
extern "C" void card_note(const char* n) {
    static std::set<std::string> seen;
    std::lock_guard<std::recursive_mutex> l(M);
    if (seen.insert(n).second && trace()) fprintf(stderr, "card: %s\n", n);
}
struct CUstream_st {
    int dev, priority;
    unsigned long long capture;
};
struct CUevent_st {
    double at;
    bool recorded;
    bool timing;
    bool captured;
};
static unsigned long long captures = 0;
static CUstream_st null_stream{0, 0, 0};
static int capturing = 0;
static CUstream_st* S(cudaStream_t s) { return s && (uintptr_t)s > 2 ? s : &null_stream; }
static cudaError_t refuse_in_capture(const char* what) {
    if (capturing) {
        fprintf(stderr, "card: %s during capture\n", what);
        return E(cudaErrorStreamCaptureUnsupported);
    }
    return cudaSuccess;
}
extern "C" {
cudaError_t cudaGetDeviceCount(int* n) {
    *n = count();
    return count() ? cudaSuccess : E(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* d) {
    *d = dev;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
    if (d >= count()) return E(cudaErrorInvalidDevice);
    dev = d;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
    *v = CARD_CUDA;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
    *v = CARD_CUDA;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char* cudaGetErrorName(cudaError_t e) { return e == 2 ? "cudaErrorMemoryAllocation" : "cudaError"; }
const char* cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess ? "no error"
           : e == 2         ? "out of memory"
           : e == 801       ? "operation not supported"
           : e == 600       ? "device not ready"
           : e == 900       ? "operation not permitted when stream is capturing"
                            : "error";
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
    memset(p, 0, sizeof *p);
    strncpy(p->name, card_name(), 255);
    p->major = card_capability() / 10;
    p->minor = card_capability() % 10;
    for (int i = 0; i < 16; i++) p->uuid.bytes[i] = (char)card_uuid_byte(i, d);
    p->totalGlobalMem = card_bytes();
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = card_capability() == 80 ? 166912 : card_capability() >= 90 ? 232448 : 101376;
    p->sharedMemPerMultiprocessor = p->sharedMemPerBlockOptin + 1024;
    p->regsPerBlock = 65536;
    p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = card_capability() == 80 || card_capability() == 90 ? 2048 : 1536;
    p->maxBlocksPerMultiProcessor = 24;
    p->multiProcessorCount = 128;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->l2CacheSize = 72 << 20;
    p->memoryBusWidth = 384;
    p->textureAlignment = 512;
    p->concurrentKernels = 1;
    p->asyncEngineCount = 2;
    p->unifiedAddressing = 1;
    p->canMapHostMemory = 1;
    p->pciBusID = 1 + d;
    p->reservedSharedMemPerBlock = 1024;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int d) {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, d);
    switch ((int)a) {
        case cudaDevAttrMultiProcessorCount:
            *v = p.multiProcessorCount;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *v = (int)p.sharedMemPerBlockOptin;
            break;
        case cudaDevAttrMaxSharedMemoryPerBlock:
            *v = 49152;
            break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *v = (int)p.sharedMemPerMultiprocessor;
            break;
        case cudaDevAttrComputeCapabilityMajor:
            *v = p.major;
            break;
        case cudaDevAttrComputeCapabilityMinor:
            *v = p.minor;
            break;
        case cudaDevAttrWarpSize:
            *v = 32;
            break;
        case cudaDevAttrMaxThreadsPerBlock:
            *v = 1024;
            break;
        case cudaDevAttrMaxThreadsPerMultiProcessor:
            *v = p.maxThreadsPerMultiProcessor;
            break;
        case cudaDevAttrMaxRegistersPerBlock:
            *v = 65536;
            break;
        case cudaDevAttrMaxRegistersPerMultiprocessor:
            *v = 65536;
            break;
        case cudaDevAttrMaxGridDimX:
            *v = 2147483647;
            break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ:
            *v = 65535;
            break;
        case cudaDevAttrClockRate:
            *v = 2520000;
            break;
        case cudaDevAttrMemoryClockRate:
            *v = 10501000;
            break;
        case cudaDevAttrGlobalMemoryBusWidth:
            *v = 384;
            break;
        case cudaDevAttrMemoryPoolsSupported:
            *v = 1;
            break;
        case cudaDevAttrUnifiedAddressing:
            *v = 1;
            break;
        default:
            card_note((std::string("attribute ") + std::to_string((int)a)).c_str());
            *v = 0;
    }
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** p, size_t n) {
    std::lock_guard<std::recursive_mutex> l(M);
    size_t r = (n + 4095) & ~(size_t)4095;
    if (used[dev] + CONTEXT + r > card_bytes()) {
        *p = nullptr;
        if (trace()) fprintf(stderr, "card: no room for %zu\n", n);
        return E(cudaErrorMemoryAllocation);
    }
    void* m = mmap(0, r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED) {
        *p = nullptr;
        return E(cudaErrorMemoryAllocation);
    }
    used[dev] += r;
    blocks[(uintptr_t)m] = {r, dev, false};
    *p = m;
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    if (!p) return cudaSuccess;
    std::lock_guard<std::recursive_mutex> l(M);
    if (cudaError_t e = refuse_in_capture("cudaFree")) return e;
    auto i = blocks.find((uintptr_t)p);
    if (i == blocks.end()) return E(cudaErrorInvalidValue);
    used[i->second.dev] -= i->second.size;
    munmap(p, i->second.size);
    blocks.erase(i);
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
    *t = card_bytes();
    *f = card_bytes() - CONTEXT - used[dev];
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
    std::lock_guard<std::recursive_mutex> l(M);
    size_t r = (n + 4095) & ~(size_t)4095;
    void* m = mmap(0, r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return E(cudaErrorMemoryAllocation);
    blocks[(uintptr_t)m] = {r, dev, true};
    *p = m;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
    std::lock_guard<std::recursive_mutex> l(M);
    auto i = blocks.find((uintptr_t)p);
    if (i == blocks.end()) return E(cudaErrorInvalidValue);
    munmap(p, i->second.size);
    blocks.erase(i);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t n, unsigned) {
    std::lock_guard<std::recursive_mutex> l(M);
    blocks[(uintptr_t)p] = {n, dev, true};
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
    std::lock_guard<std::recursive_mutex> l(M);
    blocks.erase((uintptr_t)p);
    return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** d, void* h, unsigned) {
    *d = h;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    std::lock_guard<std::recursive_mutex> l(M);
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    a->device = -1;
    auto i = blocks.upper_bound((uintptr_t)p);
    if (i != blocks.begin()) {
        --i;
        if ((uintptr_t)p < i->first + i->second.size) {
            a->type = i->second.host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
            a->device = i->second.dev;
            a->devicePointer = (void*)p;
            if (i->second.host) a->hostPointer = (void*)p;
        }
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, cudaMemcpyKind) {
    if (cudaError_t e = refuse_in_capture("cudaMemcpy")) return e;
    memmove(d, s, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind k, cudaStream_t) {
    memmove(d, s, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* d, int, const void* s, int, size_t n, cudaStream_t) {
    memmove(d, s, n);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* d, int v, size_t n) {
    memset(d, v, n);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t) {
    memset(d, v, n);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return refuse_in_capture("cudaDeviceSynchronize"); }
cudaError_t cudaDeviceGetPCIBusId(char* b, int n, int d) {
    snprintf(b, n, "0000:%02x:00.0", d + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* c, int, int) {
    *c = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) {
    *a = 0;
    *b = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int p) {
    *s = new CUstream_st{dev, p, 0};
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) { return cudaStreamCreateWithPriority(s, f, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
    *p = S(s)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    if (S(s)->capture) {
        fprintf(stderr, "card: sync of a capturing stream\n");
        return E(cudaErrorStreamCaptureUnsupported);
    }
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    if (S(s)->capture) return E(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* st) {
    *st = S(s)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode m) {
    if (!s) return E(cudaErrorStreamCaptureUnsupported);
    S(s)->capture = ++captures;
    capturing++;
    return cudaSuccess;
}
struct CUgraph_st {
    int n;
};
struct CUgraphExec_st {
    int n;
};
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
    S(s)->capture = 0;
    capturing--;
    *g = new CUgraph_st{1};
    return cudaSuccess;
}
#undef cudaStreamGetCaptureInfo
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* st, unsigned long long* id,
                                     cudaGraph_t* g, const cudaGraphNode_t** d, const cudaGraphEdgeData** e,
                                     size_t* n) {
    *st = S(s)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = S(s)->capture;
    if (n) *n = 0;
    if (g) *g = nullptr;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* x, cudaGraph_t, unsigned long long) {
    *x = new CUgraphExec_st{1};
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* x, cudaGraph_t, unsigned long long) {
    *x = new CUgraphExec_st{1};
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* n) {
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    card_note("graph launched");
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
    static thread_local cudaStreamCaptureMode mine = cudaStreamCaptureModeGlobal;
    auto o = mine;
    mine = *m;
    *m = o;
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned f) {
    *e = new CUevent_st{0, false, !(f & cudaEventDisableTiming), false};
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    e->at = now();
    e->recorded = true;
    e->captured = S(s)->capture;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }
cudaError_t cudaEventQuery(cudaEvent_t e) {
    if (capturing && e->captured) return E(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return refuse_in_capture("cudaEventSynchronize"); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
    if (!a->recorded || !b->recorded || !a->timing || !b->timing) return E(cudaErrorInvalidResourceHandle);
    *ms = (float)(b->at - a->at);
    return cudaSuccess;
}
static std::map<const void*, std::string> functions;
cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void** a, size_t sh, cudaStream_t) {
    card_note(("kernel " + functions[f]).c_str());
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* f, void**) {
    card_note(("kernel " + functions[f]).c_str());
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t f, dim3, dim3, void**, size_t, cudaStream_t) {
    card_note(("kernel " + functions[(void*)f]).c_str());
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* f) {
    *k = (cudaKernel_t)f;
    return cudaSuccess;
}
void** __cudaRegisterFatBinary(void*) { return (void**)malloc(8); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* h, char*, const char* n, int, uint3*, uint3*, dim3*, dim3*, int*) {
    if (trace()) functions[h] = n;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
struct Call {
    dim3 g, b;
    size_t s;
    void* st;
};
static thread_local Call call;
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t s, cudaStream_t st) {
    call = {g, b, s, st};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* g, dim3* b, size_t* s, void* st) {
    *g = call.g;
    *b = call.b;
    *s = call.s;
    *(void**)st = call.st;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->binaryVersion = card_capability();
    a->ptxVersion = card_capability();
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
    *n = 4;
    return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** p, const void* s) {
    static char zero[65536];
    *p = zero;
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* d) {
    f(d);
    return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* d, unsigned) {
    f(s, cudaSuccess, d);
    return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int) {
    static int x;
    *p = (cudaMemPool_t)&x;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** p, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* r) {
    static void* h = dlopen("libcuda.so.1", RTLD_NOW);
    *p = h ? dlsym(h, name) : nullptr;
    if (r) *r = *p ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    if (!*p) card_note((std::string("no driver entry ") + name).c_str());
    return *p ? cudaSuccess : E(cudaErrorSymbolNotFound);
}
}
