// CUDA's driver, for Triton and torch's own launcher: modules load, kernels do nothing.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "card.h"
extern "C" {
static void* rt(const char* n) {
    static void* h = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    return h ? dlsym(h, n) : nullptr;
}
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* v) {
    *v = CARD_CUDA;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* n) {
    *n = card_count();
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* d, int i) {
    *d = i;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* n, int l, CUdevice) {
    strncpy(n, "error", l);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
    auto f = (int (*)(int*, int, int))rt("cudaDeviceGetAttribute");
    if (f) return (CUresult)f(v, (int)a, d);
    *v = 0;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* c) {
    static int x;
    *c = (CUcontext)&x;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* d) {
    auto f = (int (*)(int*))rt("cudaGetDevice");
    *d = 0;
    if (f) f(d);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice) { return cuCtxGetCurrent(c); }
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* f, int* a) {
    *f = 0;
    *a = 1;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* m, const void*) {
    *m = (CUmodule)malloc(8);
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* m, const void*, unsigned, CUjit_option*, void**) {
    *m = (CUmodule)malloc(8);
    return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule* m, const char*) {
    *m = (CUmodule)malloc(8);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule, const char* n) {
    *f = (CUfunction)strdup(n);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction) {
    *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
CUresult cuLaunchKernel(CUfunction f, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void**, void**) {
    auto n = (void (*)(const char*))rt("card_note");
    if (n) n((const char*)f);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction f, void**, void**) {
    auto n = (void (*)(const char*))rt("card_note");
    if (n) n((const char*)f);
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** s) {
    *s = "error";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult, const char** s) {
    *s = "error";
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* v, CUpointer_attribute a, CUdeviceptr p) {
    if (a == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        *(CUdeviceptr*)v = p;
    else
        memset(v, 0, 8);
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* n, CUfunction, const CUlaunchConfig*) {
    *n = 1;
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t* f, size_t* t) {
    auto g = (int (*)(size_t*, size_t*))rt("cudaMemGetInfo");
    if (g) g(f, t);
    return CUDA_SUCCESS;
}
CUresult cuGetProcAddress(const char* n, void** p, int, cuuint64_t, CUdriverProcAddressQueryResult* r) {
    static void* h = dlopen("libcuda.so.1", RTLD_NOW);
    *p = dlsym(h, n);
    if (r) *r = *p ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *p ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
}
